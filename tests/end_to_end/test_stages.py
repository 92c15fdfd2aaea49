"""Every stage and loss is the same run however many ranks share its rows."""

import json
import math
import random
import re
import shutil

import pytest
from conftest import (
    add_dataset, relative_difference, run_to_end, same_run, settings_of, words_of_real_text, words_of_the_program,
    write_model,
)
from safetensors.torch import load_file, save_file
from shared import made_once
from test_parallel_training import MODES
from tolerance import TOLERANCE, of_log_ratio

NUM_STEPS = 10
STAGES = {
    "pt": dict(stage="pt", dataset="texts", cutoff_len=64),
    "rm": dict(stage="rm", dataset="pairs"),
    "kto": dict(stage="kto", dataset="verdicts", pref_ftx=0.1),
    "sigmoid": dict(stage="dpo", dataset="pairs", dpo_label_smoothing=0.1, pref_ftx=0.2),
    "hinge": dict(stage="dpo", dataset="pairs", pref_loss="hinge", pref_beta=0.01),
    "ipo": dict(stage="dpo", dataset="pairs", pref_loss="ipo"),
    "kto_pair": dict(stage="dpo", dataset="pairs", pref_loss="kto_pair"),
    "orpo": dict(stage="dpo", dataset="pairs", pref_loss="orpo"),
    "simpo": dict(stage="dpo", dataset="pairs", pref_loss="simpo", pref_beta=2.0),
    "packing": dict(stage="sft", dataset="chats", packing=True, cutoff_len=128),
    "packing, dropout": dict(stage="sft", dataset="chats", packing=True, cutoff_len=128, finetuning_type="lora",
                             lora_dropout=0.1),
    "neat_packing": dict(stage="sft", dataset="chats", neat_packing=True, cutoff_len=128),
    "lora": dict(stage="dpo", dataset="pairs", finetuning_type="lora", lora_dropout=0.1),
    "freeze": dict(stage="sft", dataset="chats", finetuning_type="freeze", freeze_trainable_layers=1),
}


@pytest.fixture(scope="session")
def stage_data(data, place):
    """Pairs, verdicts and texts beside the chats. A long prompt before short answers puts all labels on
    the last rank."""
    words, rng = words_of_real_text(), random.Random(3)

    def text(least, most):
        begin = rng.randrange(len(words) - most)
        return " ".join(words[begin : begin + rng.randint(least, most)])

    pairs = [{"instruction": text(3, 30), "input": "", "chosen": text(5, 40), "rejected": text(5, 40)}
             for _ in range(14)]
    pairs += [{"instruction": text(60, 80), "input": "", "chosen": "yes", "rejected": text(1, 3)} for _ in range(2)]
    folder = place / "data"
    columns = {"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"}
    add_dataset(folder, "pairs", pairs, ranking=True, columns=columns)
    verdicts = [{"instruction": text(3, 30), "output": text(5, 40), "label": rng.random() < 0.6} for _ in range(16)]
    add_dataset(folder, "verdicts", verdicts,
                columns={"prompt": "instruction", "response": "output", "kto_tag": "label"})
    add_dataset(folder, "texts", [{"text": text(20, 100)} for _ in range(30)], columns={"prompt": "text"})
    return data


@pytest.fixture(scope="session")
def stage_models(models, place):
    def six(folder):
        write_model(folder, "qwen2", num_attention_heads=6, hidden_size=96)

    return models | {"six": str(made_once(place / "six", six))}


@pytest.fixture(scope="session")
def stage_run(stage_models, stage_data, known_run):
    """A run of a stage, made once for all tests that look at it."""
    def run(stage, num_ranks=1, model="six", **changes):
        settings = settings_of(stage_models[model], stage_data, "")
        settings |= dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=NUM_STEPS,
                         learning_rate=3e-4) | STAGES[stage] | changes
        if num_ranks > 1:
            settings |= dict(sequence_parallel_size=num_ranks)
        return known_run(settings, num_ranks)

    return run


def test_every_stage_and_loss_is_here():
    # Rollouts and teachers are shared by ranks in tests/parity: test_grpo.py, test_distill.py.
    others = {"grpo", "distill", "distill_sft"}
    assert {keys["stage"] for keys in STAGES.values()} == set(words_of_the_program("stage")) - others
    losses = [keys.get("pref_loss", "sigmoid") for keys in STAGES.values() if keys["stage"] == "dpo"]
    assert set(losses) == set(words_of_the_program("pref_loss"))


def logged_by(stage):
    """What is logged beside loss and gradient norm."""
    kind = STAGES[stage]["stage"]
    if kind in ("pt", "sft"):
        return []
    names = ["rewards/chosen", "rewards/rejected", "rewards/margins"]
    names += ["logps/chosen", "logps/rejected"] if kind != "rm" else []
    return names + {"kto": ["kl"], "dpo": ["rewards/accuracies"], "rm": ["rewards/accuracies"]}[kind]


def allowed(run, stage):
    """rm's rewards are numbers about 1; the others' rewards and KL are differences of log-probabilities."""
    logps = run.logged("logps/chosen") + run.logged("logps/rejected")
    beta = 1.0 if stage == "kto" else STAGES[stage].get("pref_beta", 0.1)
    return dict(rel=TOLERANCE, abs=beta * of_log_ratio(logps) if logps else TOLERANCE)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("num_ranks, mode", [(2, "ulysses"), (3, "zigzag-ring")])
def test_ranks(stage, num_ranks, mode, stage_run):
    """Loss, gradient norm and what is logged beside them, batches of two rows."""
    alone, shared = stage_run(stage), stage_run(stage, num_ranks, sequence_parallel_mode=mode)
    assert len(alone.logged("loss")) == NUM_STEPS
    same_run(alone, shared)
    for key in logged_by(stage):
        # A step of KTO may hold no good or no bad answer.
        assert len(alone.logged(key)) == NUM_STEPS or (stage == "kto" and len(alone.logged(key)) > NUM_STEPS / 2), key
        assert shared.logged(key) == pytest.approx(alone.logged(key), **allowed(alone, stage)), key
    # It learns: the model is not merely the same everywhere because nothing happens to it.
    assert len(set(alone.logged("loss"))) == NUM_STEPS


@pytest.mark.parametrize("stage", STAGES)
def test_accumulation(stage, stage_run):
    """One micro-batch of four rows, or four of one: the same steps."""
    settings = dict(max_steps=4, lora_dropout=0.0) if "lora_dropout" in STAGES[stage] else dict(max_steps=4)
    once = stage_run(stage, per_device_train_batch_size=4, gradient_accumulation_steps=1, **settings)
    often = stage_run(stage, per_device_train_batch_size=1, gradient_accumulation_steps=4, **settings)
    same_run(once, often)


@pytest.mark.parametrize("stage", ["kto", "sigmoid", "kto_pair", "rm"])
def test_data_parallel_groups(stage, stage_run, stage_models, stage_data, tmp_path):
    """Two groups of two ranks: estimates over all pairs of a step are those of one process."""
    alone = stage_run(stage, max_steps=4, gradient_accumulation_steps=2)
    settings = settings_of(stage_models["six"], stage_data, tmp_path / "groups")
    settings |= dict(per_device_train_batch_size=2, gradient_accumulation_steps=1, max_steps=4, learning_rate=3e-4,
                     sequence_parallel_size=2) | STAGES[stage]
    same_run(alone, run_to_end(settings, 4))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_ranks, bf16", [(2, False), (3, True)])
def test_first_dpo_loss_is_log_2(mode, num_ranks, bf16, stage_run):
    """Policy and reference are computed alike, to the bit: no rounding shows before the first update."""
    degree = dict(bf16=True) if bf16 else {}
    run = stage_run("hinge", num_ranks, pref_loss="sigmoid", max_steps=1, sequence_parallel_mode=mode,
                    gradient_accumulation_steps=1, **degree)
    assert run.logged("loss") == [math.log(2)]
    assert run.logged("rewards/margins") == [0.0]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_first_dpo_loss_alone(bf16, lora, stage_run):
    changes = dict(finetuning_type="lora") if lora else {}
    run = stage_run("hinge", pref_loss="sigmoid", max_steps=1, bf16=bf16, gradient_accumulation_steps=1, **changes)
    assert run.logged("loss") == [math.log(2)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("stage", ["sigmoid", "ipo", "orpo", "rm"])
def test_shared_prompts(stage, num_ranks, stage_run):
    mode = {} if num_ranks == 1 else dict(sequence_parallel_mode="balanced-ulysses" if num_ranks == 2 else "zigzag-ring")
    apart, shared = stage_run(stage), stage_run(stage, num_ranks, pref_share_prompt=True, **mode)
    same_run(apart, shared)
    check_tokens(apart, shared)


def results_of(run):
    return json.loads((run.output_dir / "train_results.json").read_text())


def check_tokens(apart, shared):
    """Tokens are those of the data, whatever is computed; where that is less, both are said."""
    whole, both = results_of(apart), results_of(shared)
    assert both["num_input_tokens_seen"] == whole["num_input_tokens_seen"] > both["num_computed_tokens"] > 0
    assert "num_computed_tokens" not in whole and "computed" not in apart.text.partition("Output")[2]
    share = both["num_computed_tokens"] / both["num_input_tokens_seen"]
    assert both["train_computed_tokens_per_second"] == pytest.approx(share * both["train_tokens_per_second"])
    assert both["total_flos"] == pytest.approx(share * whole["total_flos"])  # of work that is done
    *_, line = map(json.loads, (shared.output_dir / "trainer_log.jsonl").read_text().splitlines())
    assert line["total_tokens"] == both["num_input_tokens_seen"] and line["computed_tokens"] == both["num_computed_tokens"]
    assert line["computed_throughput"] == pytest.approx(share * line["throughput"])
    assert re.search(r"[\d,]+ tokens/s \([\d,]+ computed\)", shared.text), shared.text


@pytest.mark.parametrize("keys", [{}, dict(pref_share_prompt=True)])
def test_value_head_dropout(keys, stage_run):
    """However many ranks share the rows; in training alone."""
    changes = dict(value_head_dropout=0.1, val_size=4, eval_strategy="steps", eval_steps=1, max_steps=6)
    alone, shared = stage_run("rm", **changes), stage_run("rm", 2, **changes, **keys)
    same_run(alone, shared, keys=("loss", "grad_norm", "eval_loss"))
    without = stage_run("rm", **changes | dict(value_head_dropout=0.0))
    assert relative_difference(alone.logged("loss"), without.logged("loss")) > 1e-3
    # Before anything is learned, the evaluation is the same: it drops nothing.
    still = [stage_run("rm", **changes | dict(value_head_dropout=p, learning_rate=0.0)) for p in (0.1, 0.0)]
    assert still[0].logged("eval_loss") == still[1].logged("eval_loss")
    assert len(set(still[0].logged("eval_loss"))) == 1 and still[0].logged("loss") != still[1].logged("loss")


def logps_of(lines):
    examples = sorted((json.loads(line) for line in lines), key=lambda entry: entry["example"])
    return [number for entry in examples for number in entry["logps"]]


@pytest.mark.parametrize("stage", ["sigmoid", "kto"])
def test_precomputed_reference(stage, stage_run, tmp_path):
    """The same losses; a second run takes the numbers from the file; another model does not."""
    alone = stage_run(stage)
    first = stage_run(stage, 2, precompute_ref_log_probs=True)
    same_run(alone, first)
    cache = list(first.output_dir.glob("reference_logps_*.jsonl"))
    assert len(cache) == 1
    assert "16 examples, 0 of them kept" in first.text
    # Half of the lines, the last of them torn, as a run that was killed leaves it, and one that somebody has changed.
    lines = cache[0].read_text().splitlines(keepends=True)
    assert len(lines) == 16
    changed = json.loads(lines[8])
    changed["logps"][0] -= 1e-12
    cache[0].write_text("".join(lines[:7]) + json.dumps(changed) + "\n" + lines[7][:9])
    settings = json.loads((first.output_dir.parent / (first.output_dir.name + ".yaml")).read_text())
    again = run_to_end(settings | dict(overwrite_output_dir=True), 2)
    assert "16 examples, 7 of them kept" in again.text
    assert again.text.count(f"warning: 1 line of {cache[0]} is damaged") == 1, again.text
    same_run(first, again)
    # The examples lay in other rows this time: the same numbers up to rounding, the kept ones to the digit.
    kept = cache[0].read_text().splitlines()
    if stage == "kto":
        return
    same_reference = again.logged("loss")[0]
    other = shutil.copytree(settings["model_name_or_path"], tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"][5] += 0.01
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    changed = run_to_end(settings | dict(overwrite_output_dir=True, ref_model=str(other), max_steps=1), 2)
    assert "16 examples, 0 of them kept" in changed.text
    assert changed.logged("loss")[0] != same_reference  # of the same folder
    assert kept[:7] == [line.strip() for line in lines[:7]]
    assert logps_of(kept) == pytest.approx(logps_of(lines), rel=1e-6)


def test_evaluation(stage_run):
    """Loss and averages of an evaluation set, however many ranks share it."""
    changes = dict(val_size=4, eval_strategy="steps", eval_steps=10, max_steps=10)
    for stage, names in {"sigmoid": ["eval_rewards/accuracies", "eval_rewards/margins", "eval_logps/chosen"],
                         "kto": ["eval_kl"], "rm": ["eval_rewards/accuracies"], "pt": [], "orpo": []}.items():
        alone, shared = stage_run(stage, **changes), stage_run(stage, 2, **changes)
        same_run(alone, shared, keys=["eval_loss"])
        for name in names:
            assert len(alone.logged(name)) == 1
            assert alone.logged(name) == pytest.approx(shared.logged(name), **allowed(alone, stage))
        # Estimates are over the whole set, not a batch of it.
        same_run(alone, stage_run(stage, per_device_eval_batch_size=1, **changes), keys=["eval_loss"])


def test_what_is_written(stage_run):
    run = stage_run("sigmoid", plot_loss=True, max_steps=3)
    assert (run.output_dir / "training_rewards_accuracies.png").read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in (run.output_dir / "trainer_log.jsonl").read_text().splitlines()]
    assert [line["accuracy"] for line in lines if "accuracy" in line] == run.logged("rewards/accuracies")
    rm = stage_run("rm")
    assert set(load_file(rm.output_dir / "value_head.safetensors")) == {"v_head.summary.weight", "v_head.summary.bias"}
    lora = stage_run("lora")
    assert (lora.output_dir / "adapter_config.json").exists() and not (lora.output_dir / "model.safetensors").exists()


def test_nothing_stale_beside_new_weights(stage_models, stage_data, tmp_path):
    """An adapter or a value head of an earlier run would be loaded with the new model."""
    settings = settings_of(stage_models["six"], stage_data, tmp_path / "out") | dict(max_steps=1, overwrite_output_dir=True)
    weights = {"model.safetensors", "adapter_model.safetensors", "adapter_config.json", "value_head.safetensors",
               "config.json"}
    for changes, expected in [
        (STAGES["rm"] | dict(finetuning_type="lora"), {"adapter_model.safetensors", "adapter_config.json",
                                                       "value_head.safetensors"}),
        (STAGES["sigmoid"], {"model.safetensors", "config.json"}),
        (STAGES["lora"], {"adapter_model.safetensors", "adapter_config.json"}),
    ]:
        run = run_to_end(settings | changes)
        assert {path.name for path in run.output_dir.iterdir()} & weights == expected
