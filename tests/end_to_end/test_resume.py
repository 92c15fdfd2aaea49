"""A run that stopped and went on is the run that never stopped: the same bytes, the same log."""

import json
import os
import shutil

import pytest
from conftest import Running, add_dataset, relative_difference, run_to_end, settings_of, write_model
from faults import wait_for
from shared import made_once

# What tells of time or of the machine.
TIMES = {"elapsed_time", "remaining_time", "throughput", "train_runtime", "train_samples_per_second",
         "train_steps_per_second", "train_tokens_per_second", "eval_runtime", "eval_samples_per_second",
         "eval_steps_per_second", "computed_throughput", "train_computed_tokens_per_second"}
# fp32 sums in another order, and AdamW turns the difference of a step into one of the weights.
TOLERANCE = 1e-5


def weights(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def without_times(entries):
    return [{key: value for key, value in entry.items() if key not in TIMES} for entry in entries]


def log_lines(folder):
    return without_times(json.loads(line) for line in (folder / "trainer_log.jsonl").open())


def succeeds(settings, num_ranks=1, **more):
    return run_to_end(settings | more, num_ranks, timeout=120)


def halfway(run, step, output_dir):
    """An output_dir as it was when the run had just saved `step`."""
    shutil.copytree(run.output_dir / f"checkpoint-{step}", output_dir / f"checkpoint-{step}")
    return str(output_dir)


def same_bytes(left, right):
    assert weights(left.output_dir) and weights(left.output_dir) == weights(right.output_dir)
    assert without_times(left.history) == without_times(right.history)
    assert log_lines(left.output_dir) == log_lines(right.output_dir)


@pytest.fixture
def settings(models, place, data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    words = [f"word{i} and more" for i in range(24)]
    columns = dict(prompt="instruction", query="input", chosen="chosen", rejected="rejected")
    add_dataset(folder, "pairs", [dict(instruction=w, input="", chosen=w + " yes", rejected="no " + w) for w in words],
                ranking=True, columns=columns)
    add_dataset(folder, "verdicts",
                [dict(instruction=w, output=w + " so", label=i % 3 != 0) for i, w in enumerate(words)],
                columns=dict(prompt="instruction", response="output", kto_tag="label"))

    def make(name, model="llama", **changes):
        # 24 rows, 3 a step: an epoch has 8 steps, so 5 is in its middle.
        of_kind = models.get(model) or made_once(place / model, lambda folder: write_model(folder, model))
        return settings_of(of_kind, folder, tmp_path / name, gradient_accumulation_steps=3,
                           save_strategy="steps", save_steps=5, cutoff_len=64) | changes
    return make


LORA = dict(finetuning_type="lora", lora_dropout=0.2)
KINDS = {
    "full": dict(logging_steps=2, eval_dataset="held_out", eval_strategy="steps", eval_steps=5),
    "lora with dropout": LORA | dict(weight_decay=0.1, lr_scheduler_type="cosine", warmup_steps=3),
    "lora+, noise, weighed losses": LORA | dict(loraplus_lr_ratio=4, neftune_noise_alpha=5, use_dft_loss=True),
    "4 bits, dropout": LORA | dict(quantization_bit=4, bf16=True),
    "8 bits": LORA | dict(quantization_bit=8, bf16=True),
    "bf16": dict(bf16=True),
    "pure bf16": dict(pure_bf16=True),
    "bf16, frozen layers": dict(bf16=True, finetuning_type="freeze", freeze_trainable_layers=1),
    "dpo": dict(stage="dpo", dataset="pairs", logging_steps=3),
    "dpo, lora, dropout": LORA | dict(stage="dpo", dataset="pairs", per_device_train_batch_size=2),
    "kto_pair, computed ahead": dict(stage="dpo", dataset="pairs", pref_loss="kto_pair", precompute_ref_log_probs=True),
    "kto": dict(stage="kto", dataset="verdicts", logging_steps=4),
    "rm, dropout, shared prompts": dict(stage="rm", dataset="pairs", value_head_dropout=0.1, pref_share_prompt=True),
    "pt": dict(stage="pt", dataset="chats", cutoff_len=48),
    "hybrid": dict(model="qwen3_5", logging_steps=2),
    "hybrid, experts, lora": LORA | dict(model="qwen3_next", moe_aux_loss_coef=0.05,
                                         lora_target="q_proj,in_proj_qkvz,in_proj_ba,out_proj"),
    "hybrid, experts": dict(model="qwen3_5_moe", moe_aux_loss_coef=0.05),
    "fused tensors in the files": dict(model="phi3"),
    "adapters of fused tensors, dropout": LORA | dict(model="phi3", pure_bf16=True),
    "sinks, windows, stacked experts": dict(model="gpt_oss", moe_aux_loss_coef=0.05),
    "adapters of stacked experts": dict(model="gpt_oss", finetuning_type="lora", lora_target="q_proj,gate_up_proj,down_proj"),
    "latents, corrected routers, shared prompts": dict(model="deepseek_v3", stage="dpo", dataset="pairs", pref_share_prompt=True),
    "corrected routers, rm": dict(model="glm4_moe", stage="rm", dataset="pairs", pref_share_prompt=True),
    "two kinds of layers, kto": dict(model="gemma3", stage="kto", dataset="verdicts"),
    "norms behind, shared prompts": dict(model="glm4", stage="dpo", dataset="pairs", pref_share_prompt=True, bf16=True),
    "windows, pt": dict(model="mistral", stage="pt", dataset="chats", cutoff_len=48),
    "experts, rm": dict(model="qwen3_moe", stage="rm", dataset="pairs", moe_aux_loss_coef=0.05),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_are_five_and_five(kind, settings, tmp_path):
    whole = succeeds(settings("whole", **KINDS[kind]))
    resumed = succeeds(settings("halves", **KINDS[kind]) | dict(output_dir=halfway(whole, 5, tmp_path / "halves")))
    assert "step 5 of 10" in resumed.text
    same_bytes(whole, resumed)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_stream_of_examples(num_ranks, settings, tmp_path):
    """It is trained as the data set with its rows, over the end of the set, and goes on from its own state."""
    keys = dict(device="cpu", max_steps=10)  # 8 steps an epoch
    known = run_to_end(settings("known", **keys), num_ranks)
    whole = run_to_end(settings("whole", **keys), num_ranks, stream=True)
    assert whole.logged("loss") == known.logged("loss") and weights(whole.output_dir) == weights(known.output_dir)
    halves = halfway(whole, 5, tmp_path / "halves")
    resumed = run_to_end(settings("halves", **keys) | dict(output_dir=halves), num_ranks, stream=True)
    assert "step 5 of 10" in resumed.text
    same_bytes(whole, resumed)


def test_a_stream_and_a_data_set(settings):
    """A checkpoint of one is none of the other's; a stream needs max_steps."""
    keys = settings("run", max_steps=5, device="cpu")
    whole = run_to_end(keys, stream=True)
    refused = Running(keys | dict(resume_from_checkpoint=str(whole.output_dir / "checkpoint-5"),
                                  output_dir=f"{whole.output_dir}-on")).wait()
    assert refused.status == 1 and "a stream of examples, and this one trains on a data set" in refused.text, refused.text
    with pytest.raises(AssertionError, match="max_steps"):
        run_to_end(settings("endless", max_steps=-1, num_train_epochs=1, device="cpu"), stream=True)


def test_a_killed_hybrid(settings, tmp_path):
    """Killed in its middle, it ends as the run that nobody disturbed."""
    keys = dict(model="qwen3_next", sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring", bf16=True,
                moe_aux_loss_coef=0.05, save_steps=1, save_total_limit=2, max_steps=6)
    whole = succeeds(settings("whole", **keys), 2)
    running = Running(settings("killed", **keys), 2)
    wait_for(running, "checkpoint-2")
    for rank in running.ranks:
        rank.kill()
    assert min(running.wait().statuses) < 0
    on = succeeds(settings("killed", **keys), 2)
    assert "Going on from" in on.text
    same_bytes(whole, on)


@pytest.mark.parametrize("num_ranks, sequence_size", [(4, 1), (4, 2)])
def test_four_ranks(num_ranks, sequence_size, settings, tmp_path):
    keys = dict(sequence_parallel_size=sequence_size, bf16=True, logging_steps=2)
    whole = succeeds(settings("whole", **keys), num_ranks)
    folder = whole.output_dir / "checkpoint-5" / "training_state"
    assert len(list(folder.glob("part-*-of-00004.safetensors"))) == 4
    sizes = sorted(path.stat().st_size for path in folder.iterdir())
    assert sizes[-1] < 1.3 * sizes[0], sizes  # each rank writes its share
    resumed = succeeds(settings("halves", **keys) | dict(output_dir=halfway(whole, 5, tmp_path / "halves")), num_ranks)
    same_bytes(whole, resumed)


def test_other_numbers_of_ranks(settings, tmp_path):
    """4 rows a step, whoever computes them."""
    keys = dict(learning_rate=3e-4, weight_decay=0.01)
    start = succeeds(settings("start", gradient_accumulation_steps=1, **keys), 4)
    rest = slice(5, None)
    for number, (num_ranks, sequence_size) in enumerate([(2, 1), (4, 4), (2, 2), (1, 1)]):
        output = halfway(start, 5, tmp_path / f"other{number}")
        resumed = succeeds(settings("x", **keys) | dict(
            output_dir=output, sequence_parallel_size=sequence_size,
            gradient_accumulation_steps=4 * sequence_size // num_ranks), num_ranks)
        assert len(resumed.logged("loss")) == 10
        assert resumed.logged("loss")[:5] == start.logged("loss")[:5]
        for key in ("loss", "grad_norm"):
            assert relative_difference(resumed.logged(key)[rest], start.logged(key)[rest]) < TOLERANCE


def test_another_batch_is_refused(settings, tmp_path):
    start = succeeds(settings("start", gradient_accumulation_steps=2), 2)
    before = {path: path.stat().st_mtime_ns for path in start.output_dir.rglob("*")}
    for changes, words in [
        (dict(gradient_accumulation_steps=2), ["was 4, and is 2 now", "gradient_accumulation_steps: 4"]),
        (dict(gradient_accumulation_steps=4, seed=7), ["seed was 42, and is 7 now"]),
        (dict(gradient_accumulation_steps=4, max_samples=20), ["training rows was 24, and is 20 now"]),
        (dict(gradient_accumulation_steps=4, cutoff_len=32), ["fingerprint of the training rows", "cutoff_len"]),
        # The model was made for 64 positions.
        (dict(gradient_accumulation_steps=4, rope_scaling="linear", cutoff_len=256),
         ["rope_scaling was llama3 with factor", "and is linear with factor 4 (256 positions) now",
          "Set rope_scaling and cutoff_len"]),
        (dict(gradient_accumulation_steps=4, finetuning_type="lora"), ["finetuning_type was full, and is lora now"]),
        (dict(gradient_accumulation_steps=4, max_steps=5), ["is at step 10", "ends at step 5"]),
    ]:
        refused = Running(settings("start") | changes).wait()
        assert refused.status == 1, refused.text
        for word in [*words, "checkpoint-10"]:
            assert word in refused.text, refused.text
        now = {path: path.stat().st_mtime_ns for path in start.output_dir.rglob("*")}
        assert now == before


def test_a_finished_run_ends_again_as_it_ended(settings):
    whole = succeeds(settings("whole", eval_dataset="held_out", do_eval=True, plot_loss=True))
    files = {path.name for path in whole.output_dir.iterdir()}
    before, log = weights(whole.output_dir), without_times(whole.history)
    again = succeeds(settings("whole", eval_dataset="held_out", do_eval=True, plot_loss=True))
    assert "nothing is left to train" in again.text
    assert weights(again.output_dir) == before and without_times(again.history) == log
    assert {path.name for path in again.output_dir.iterdir()} == files
    longer = succeeds(settings("whole", eval_dataset="held_out", do_eval=True, max_steps=12))
    assert len(longer.logged("loss")) == 12


def test_a_named_checkpoint(settings, tmp_path):
    whole = succeeds(settings("whole"))
    named = succeeds(settings("named", resume_from_checkpoint=str(whole.output_dir / "checkpoint-5")))
    same_bytes(whole, named)
    earlier = succeeds(settings("whole", resume_from_checkpoint=str(whole.output_dir / "checkpoint-5")))
    assert "step 5 of 10" in earlier.text
    same_bytes(named, earlier)
    for wanted, word in [(str(tmp_path), "training_state.json"), ("true", "holds no checkpoint")]:
        refused = Running(settings("nothing", resume_from_checkpoint=wanted)).wait()
        assert refused.status == 1 and word in refused.text, refused.text
    anew = succeeds(settings("whole", overwrite_output_dir=True, max_steps=3))
    assert len(anew.logged("loss")) == 3
    on = succeeds(settings("whole", overwrite_output_dir=True, resume_from_checkpoint=True))
    assert "checkpoint-10, step 10" in on.text


def test_models_alone_are_no_checkpoints_to_go_on_from(settings):
    alone = succeeds(settings("alone", save_only_model=True))
    assert not (alone.output_dir / "checkpoint-5" / "training_state.json").exists()
    refused = Running(settings("alone")).wait()
    assert refused.status == 1 and "hold only the model" in refused.text, refused.text


def damage(checkpoint, how):
    big = max(checkpoint.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    part = next((checkpoint / "training_state").iterdir())
    if how == "truncated":
        os.truncate(big, big.stat().st_size - 1)
    elif how == "flipped byte":
        content = bytearray(part.read_bytes())
        content[-5] ^= 1
        part.write_bytes(content)
    elif how == "missing file":
        part.unlink()
    elif how == "missing state":
        (checkpoint / "training_state.json").unlink()
    elif how == "missing table":
        (checkpoint / "checksums.json").unlink()
    elif how == "broken table":
        (checkpoint / "checksums.json").write_text("{")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("how", ["truncated", "flipped byte", "missing file", "missing state", "missing table",
                                 "broken table"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_broken_checkpoint_is_named_and_the_one_before_it_used(how, num_ranks, settings):
    keys = dict(max_steps=4, save_steps=1)
    whole = succeeds(settings("whole", **keys), num_ranks)
    before = weights(whole.output_dir)
    damage(whole.output_dir / "checkpoint-4", how)
    damage(whole.output_dir / "checkpoint-3", how)
    (whole.output_dir / ".checkpoint-9.partial").mkdir()
    again = succeeds(settings("whole", **keys), num_ranks)
    for word in ("checkpoint-4 is broken", "checkpoint-3 is broken", "Going on from", "checkpoint-2, step 2 of 4"):
        assert word in again.text, again.text
    assert again.text.count("checkpoint-4 is broken") == 1
    assert weights(again.output_dir) == before
    assert not [path for path in again.output_dir.iterdir() if path.name.startswith(".")]


def forget_state(checkpoint):
    """Of training_state.json the table of checksums knows nothing. As in an older version it does not cover itself."""
    table = json.loads((checkpoint / "checksums.json").read_text())
    del table["files"]["training_state.json"]
    (checkpoint / "checksums.json").write_text(json.dumps(dict(files=table["files"])))


def change_state(checkpoint, change):
    forget_state(checkpoint)
    state = json.loads((checkpoint / "training_state.json").read_text())
    del state["checksums_cover_themselves"]
    change(state)
    (checkpoint / "training_state.json").write_text(json.dumps(state))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_state_that_cannot_be_read(num_ranks, settings):
    """Of another version, or edited: as good as broken."""
    keys = dict(max_steps=4, save_steps=1)
    whole = succeeds(settings("whole", **keys), num_ranks)
    before = weights(whole.output_dir)
    change_state(whole.output_dir / "checkpoint-4", lambda state: state.update(format=0))
    change_state(whole.output_dir / "checkpoint-3", lambda state: state["totals"].update(
        last_evaluated_step=1, last_evaluation=dict(loss="much", seconds=1, num_samples=1, num_batches=1, means=[])))
    (whole.output_dir / "checkpoint-2" / "training_state.json").unlink()
    forget_state(whole.output_dir / "checkpoint-2")
    for step, word in ((4, "its format is 0; this version of longspan reads 1"), (3, "training_state.json")):
        named = str(whole.output_dir / f"checkpoint-{step}")
        refused = Running(settings("named", **keys, resume_from_checkpoint=named), num_ranks).wait()
        assert refused.status == 1 and word in refused.text and "Name another" in refused.text, refused.text
    again = succeeds(settings("whole", **keys), num_ranks)
    for word in (*(f"checkpoint-{step} cannot be resumed from" for step in (4, 3, 2)), "checkpoint-1, step 1 of 4"):
        assert word in again.text, again.text
    assert weights(again.output_dir) == before


@pytest.mark.parametrize("resume", [None, True])
def test_a_checkpoint_that_was_being_replaced(resume, settings):
    """Killed between two renames: the old one has no name, the new one has none yet."""
    keys = dict(max_steps=4, save_steps=2) | ({} if resume is None else dict(resume_from_checkpoint=True))
    whole = succeeds(settings("whole") | dict(max_steps=4, save_steps=2))
    before = weights(whole.output_dir)
    (whole.output_dir / "checkpoint-4").rename(whole.output_dir / ".checkpoint-4.replaced")
    if resume:
        shutil.rmtree(whole.output_dir / "checkpoint-2")
    again = succeeds(settings("whole", **keys))
    assert "checkpoint-4, step 4 of 4" in again.text, again.text
    assert weights(again.output_dir) == before
    assert (again.output_dir / "checkpoint-4").is_dir()


def test_none_is_whole(settings):
    whole = succeeds(settings("whole", max_steps=2, save_steps=1))
    for step in (1, 2):
        damage(whole.output_dir / f"checkpoint-{step}", "flipped byte")
    refused = Running(settings("whole", max_steps=2)).wait()
    assert refused.status == 1
    for word in ("checkpoint-1 is broken", "checkpoint-2 is broken", "overwrite_output_dir"):
        assert word in refused.text, refused.text
    assert weights(whole.output_dir)


def test_save_total_limit_counts_those_from_before(settings):
    def saved(run):
        return sorted(int(path.name.split("-")[1]) for path in run.output_dir.glob("checkpoint-*"))

    keys = dict(save_steps=1, save_total_limit=2)
    assert saved(succeeds(settings("run", max_steps=3, **keys))) == [2, 3]
    assert saved(succeeds(settings("run", max_steps=4, **keys))) == [3, 4]
    # Of a run that was overwritten: older, whatever its number.
    assert saved(succeeds(settings("run", max_steps=1, overwrite_output_dir=True, **keys))) == [1, 4]
