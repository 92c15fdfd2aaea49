"""However ranks share out the experts of a model, the numbers of a run are those of one process that has all of them."""

import json

import pytest
from conftest import (
    Running, add_dataset, relative_difference, run_to_end, settings_of, words_of_real_text, write_dataset,
    write_model,
)
from safetensors.torch import load_file
from shared import made_once
from test_resume import halfway, same_bytes
from test_sharding import weights_of
from tolerance import ADAM_EPSILON, TOLERANCE

NUM_STEPS = 10
SHARED = dict(learning_rate=1e-3, adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, weight_decay=0.1)
OFFLOAD = dict(offload_optimizer=True, offload_params=True)
ROWS = 4  # of a step


@pytest.fixture(scope="session")
def model_folders(place):
    """Twelve experts, which 2, 3 and 4 divide: alone, beside a dense layer and a shared expert with a sigmoid, and stacked in
    the files with biases."""
    def made(kind, **shape):
        return str(made_once(place / f"shared_out_{kind}", lambda folder: write_model(folder, kind, **shape)))

    return {"qwen3_moe": made("qwen3_moe", num_experts=12), "glm4_moe": made("glm4_moe", n_routed_experts=12),
            "gpt_oss": made("gpt_oss", num_local_experts=12)}


@pytest.fixture(scope="session")
def short_rows(place):
    """Short, so that few choices of experts are close. 22 rows: in the end some groups have none."""
    def make(folder):
        write_dataset(folder, num_rows=22, shortest=4, longest=20)
        words = words_of_real_text()
        pairs = [dict(instruction=" ".join(words[9 * i : 9 * i + 5]), input="", chosen=" ".join(words[7 * i : 7 * i + 3 + i % 5]),
                      rejected=" ".join(words[5 * i : 5 * i + 4])) for i in range(22)]
        add_dataset(folder, "pairs", pairs, ranking=True,
                    columns=dict(prompt="instruction", query="input", chosen="chosen", rejected="rejected"))

    return str(made_once(place / "rows_for_experts", make))


def run(settings, num_ranks=1):
    return run_to_end(settings, num_ranks)


@pytest.fixture
def settings(model_folders, short_rows, tmp_path):
    """settings(model, num_ranks, **keys): as many rows a step on any number of ranks."""
    def make(model, num_ranks=1, **keys):
        groups = num_ranks // keys.get("sequence_parallel_size", 1)
        keys = SHARED | dict(gradient_accumulation_steps=ROWS // groups) | keys
        name = f"run{len(list(tmp_path.iterdir()))}"
        return settings_of(model_folders[model], short_rows, tmp_path / name / "out", disable_shuffling=True, **keys)

    return make


@pytest.fixture
def alone(settings, known_run):
    return lambda model, **keys: known_run(settings(model, **keys))


def check_same(many, one, keys=("loss", "grad_norm")):
    for key in keys:
        assert relative_difference(many.logged(key), one.logged(key)) < TOLERANCE, key
    # Each step moves a weight by learning_rate / adam_epsilon times its gradient at the most, clipped to norm 1.
    most = len(one.logged("loss")) * SHARED["learning_rate"] / ADAM_EPSILON
    left, right = weights_of(many.output_dir), weights_of(one.output_dir)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert (left[name] - right[name]).abs().max().item() < TOLERANCE * most, name


def check_traffic(run):
    """What was counted is the formula's, to the byte, and is told."""
    report = json.loads((run.output_dir / "expert_parallel.json").read_text())
    for sent in report["bytes"].values():
        assert sent["measured"] == sent["formula"] > 0
        assert f"{sent['formula']:,}" in run.texts[0]
    return report


AUXILIARY = dict(moe_aux_loss_coef=0.05)
LAYOUTS = {
    "2 of 2": ("qwen3_moe", 2, dict(expert_parallel_size=2) | AUXILIARY),
    "2 of 2, one batch": ("qwen3_moe", 2, AUXILIARY | dict(
        expert_parallel_size=2, per_device_train_batch_size=2, gradient_accumulation_steps=1)),
    "3 of 3, a ring, zero 3": ("qwen3_moe", 3, AUXILIARY | dict(
        expert_parallel_size=3, sequence_parallel_size=3, sequence_parallel_mode="zigzag-ring", zero_stage=3)),
    "2 of 4": ("qwen3_moe", 4, dict(expert_parallel_size=2, disable_gradient_checkpointing=True) | AUXILIARY),
    "2 of 4, zero 3, offloads": ("qwen3_moe", 4, OFFLOAD | AUXILIARY | dict(
        expert_parallel_size=2, sequence_parallel_size=2, zero_stage=3, offload_activations=True)),
    "4 of 4, ulysses": ("qwen3_moe", 4, AUXILIARY | dict(
        expert_parallel_size=4, sequence_parallel_size=2, sequence_parallel_mode="ulysses")),
    "labels alone": ("glm4_moe", 2, dict(expert_parallel_size=2)),
    "labels alone, hybrid zero 2": ("glm4_moe", 4, dict(expert_parallel_size=2, zero_stage=2, zero_shard_size=2)),
    "labels alone, zero 3": ("glm4_moe", 4, dict(expert_parallel_size=4, zero_stage=3)),
    "stacked, with biases": ("gpt_oss", 2, dict(expert_parallel_size=2) | AUXILIARY),
    "stacked, with biases, zero 3": ("gpt_oss", 4, dict(expert_parallel_size=2, zero_stage=3) | AUXILIARY),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, alone, settings):
    model, num_ranks, keys = LAYOUTS[layout]
    one = alone(model, **(AUXILIARY if "moe_aux_loss_coef" in keys else {}))
    many = run(settings(model, num_ranks, **keys), num_ranks)
    assert len(many.logged("loss")) == NUM_STEPS
    check_same(many, one, ("loss", "grad_norm", *(["aux_loss"] if "moe_aux_loss_coef" in keys else [])))
    for key in ("expert_load/max_mean", "expert_load/max_worst", "expert_load/unused"):  # counts: exactly the same
        assert many.logged(key) == one.logged(key), key
    check_traffic(many)
    first = [line for line in one.texts[0].splitlines() if line.startswith("Model")]
    assert first == [line for line in many.texts[0].splitlines() if line.startswith("Model")]  # counts all experts
    results = [json.loads((r.output_dir / "train_results.json").read_text())["total_flos"] for r in (one, many)]
    assert results[0] == results[1]
    assert f"experts shared out among {keys['expert_parallel_size']}" in many.texts[0]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("batch", [4, 1])
def test_sizes_and_accumulation(batch, size, alone, settings):
    """Four rows a step, at once or one after the other, which four processes share."""
    keys = AUXILIARY | dict(expert_parallel_size=size, sequence_parallel_size=4, sequence_parallel_mode="ring",
                            per_device_train_batch_size=batch, gradient_accumulation_steps=4 // batch)
    one, many = alone("qwen3_moe", **AUXILIARY), run(settings("qwen3_moe", 4, **keys), 4)
    check_same(many, one, ("loss", "grad_norm", "aux_loss"))
    for key in ("expert_load/max_mean", "expert_load/max_worst", "expert_load/unused"):
        assert many.logged(key) == one.logged(key), key


@pytest.mark.parametrize("model, keys, num_ranks", [
    ("qwen3_moe", dict(expert_parallel_size=2, finetuning_type="freeze", freeze_trainable_modules="mlp", freeze_trainable_layers=1), 2),
    ("qwen3_moe", dict(expert_parallel_size=2, stage="dpo", dataset="pairs", zero_stage=2), 2),
    ("qwen3_moe", dict(expert_parallel_size=2, stage="dpo", dataset="pairs", precompute_ref_log_probs=True), 2),
    ("gpt_oss", dict(expert_parallel_size=2, finetuning_type="freeze", freeze_trainable_modules="mlp", freeze_trainable_layers=1,
                     zero_stage=1), 2),
    ("gpt_oss", dict(finetuning_type="freeze", freeze_trainable_modules="self_attn", freeze_trainable_layers=1, zero_stage=3), 2),
    ("gpt_oss", dict(stage="dpo", dataset="pairs", zero_stage=3), 2),
    ("gpt_oss", dict(stage="dpo", dataset="pairs", zero_stage=2, expert_parallel_size=2), 2),
    ("qwen3_moe", dict(stage="distill_sft", ref_model="teacher", expert_parallel_size=2), 2),
], ids=["freeze", "dpo", "dpo, ahead", "stacked, freeze", "sinks alone, zero 3", "stacked, dpo, zero 3", "stacked, dpo", "teacher"])
def test_ways_of_training(model, keys, num_ranks, alone, settings, place):
    """22 rows, four a step: in the sixth some ranks have no row and compute the experts of others' rows."""
    keys = keys | dict(max_steps=6)
    if "ref_model" in keys:
        keys["ref_model"] = str(made_once(place / "teacher_of_experts", lambda folder: write_model(
            folder, "qwen3_moe", num_experts=6, hidden_size=48)))
    without = {key: value for key, value in keys.items() if key not in ("expert_parallel_size", "zero_stage", "offload_optimizer")}
    many = run(settings(model, num_ranks, **keys), num_ranks)
    check_same(many, alone(model, **without))
    if "expert_parallel_size" in keys:
        has_reference = "stage" in keys and "precompute_ref_log_probs" not in keys
        assert ("reference" in check_traffic(many)["bytes"]) == has_reference


@pytest.mark.long
@pytest.mark.parametrize("optim, apart", [("muon", 1e-3), ("adamw_8bit", 5e-3)])
def test_other_optimizers(optim, apart, alone, settings):
    """As far apart as in test_sharding: where bf16 or 8 bits round, the last digit of a sum may round otherwise."""
    one = alone("qwen3_moe", optim=optim)
    many = run(settings("qwen3_moe", 4, optim=optim, expert_parallel_size=2, zero_stage=1), 4)
    assert relative_difference(many.logged("loss"), one.logged("loss")) < apart


@pytest.mark.long
@pytest.mark.parametrize("model, target, named", [
    ("qwen3_moe", "q_proj,gate_proj,up_proj,down_proj", ".experts.11."),
    ("gpt_oss", "q_proj,gate_up_proj,down_proj", ".experts.base_layer."),
])
def test_adapters(model, target, named, alone, settings):
    """Those of experts too; saved where one process saves them."""
    keys = dict(finetuning_type="lora", lora_target=target)
    one = alone(model, **keys)
    many = run(settings(model, 2, expert_parallel_size=2, zero_stage=3, **keys), 2)
    for key in ("loss", "grad_norm"):
        assert relative_difference(many.logged(key), one.logged(key)) < TOLERANCE, key
    left, right = [load_file(r.output_dir / "adapter_model.safetensors") for r in (many, one)]
    assert left.keys() == right.keys() and any(named in name for name in left)
    most = NUM_STEPS * SHARED["learning_rate"] / ADAM_EPSILON
    assert all((left[name] - right[name]).abs().max().item() < TOLERANCE * most for name in left)


def test_evaluation(alone, settings):
    """Five rows, of which the last batch leaves nothing for one rank."""
    keys = dict(max_steps=2, val_size=5, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=2)
    one = alone("glm4_moe", **keys)
    many = run(settings("glm4_moe", 2, expert_parallel_size=2, **keys), 2)
    assert relative_difference(many.logged("eval_loss"), one.logged("eval_loss")) < TOLERANCE


@pytest.mark.long
def test_resume(settings, tmp_path):
    """To the bit with the same experts on each rank; with others, within what another order of sums makes."""
    keys = dict(save_strategy="steps", save_steps=5, zero_stage=1, logging_steps=1, **AUXILIARY)
    whole = run(settings("qwen3_moe", 4, expert_parallel_size=2, **keys), 4)
    output = halfway(whole, 5, tmp_path / "halves")
    same_bytes(whole, run(settings("qwen3_moe", 4, expert_parallel_size=2, **keys) | dict(output_dir=output), 4))
    for number, (num_ranks, other) in enumerate([(1, {}), (4, dict(expert_parallel_size=4)), (2, dict(expert_parallel_size=2, zero_stage=3))]):
        output = halfway(whole, 5, tmp_path / f"other{number}")
        resumed = run(settings("qwen3_moe", num_ranks, **(keys | other)) | dict(output_dir=output), num_ranks)
        assert resumed.logged("loss")[:5] == whole.logged("loss")[:5]
        for key in ("loss", "grad_norm", "aux_loss"):
            assert relative_difference(resumed.logged(key), whole.logged(key)) < TOLERANCE, key


@pytest.mark.parametrize("keys, num_ranks, says", [
    (dict(expert_parallel_size=3), 2, "expert_parallel_size: 3 does not divide the number of processes, 2. Choose one of 1, 2,"),
    (dict(expert_parallel_size=5), 5, "expert_parallel_size: 5 does not divide the 12 experts of each layer of the model. Choose one of 1, 2, 3, 4, 6, 12."),
    (dict(expert_parallel_size=2, model="llama"), 2, "the model has no experts to share out. Remove the key."),
    (dict(expert_parallel_size=2, zero_stage=3, zero_shard_size=3), 6, "zero_shard_size: 3 is not a multiple of expert_parallel_size, 2"),
    (dict(expert_parallel_size=2, tiled_mlp=2), 2, "tiled_mlp and expert_parallel_size are both given"),
    (dict(expert_parallel_size=2, stage="dpo", dataset="pairs", ref_model="five"), 2, "does not divide the 5 experts of each layer of ref_model"),
])
def test_what_cannot_be(keys, num_ranks, says, models, settings, place, tmp_path):
    """One error on every rank, before training."""
    keys = dict(keys)
    if "ref_model" in keys:
        keys["ref_model"] = str(made_once(place / "five_experts", lambda folder: write_model(folder, "qwen3_moe", num_experts=5)))
    model = keys.pop("model", None)
    wrong = settings("qwen3_moe", 1, **keys)
    if model:
        wrong["model_name_or_path"] = str(models[model])
    finished = Running(wrong, num_ranks).wait()
    assert finished.statuses == [1] * num_ranks, finished.texts
    assert all(says in text for text in finished.texts), finished.texts


def test_workers_refuse_adapters_that_peft_has_not(settings):
    """Also where a launcher has started them, which knows nothing of models."""
    keys = dict(finetuning_type="lora", lora_dropout=0.1, expert_parallel_size=2)
    ended = Running(settings("qwen3_moe", 2, **keys), 2).wait()
    assert ended.statuses == [1, 1], ended.text
    assert "error: lora_target: adapters of experts are not supported with lora_dropout" in ended.text, ended.text
