"""Rows that are dealt to processes by their work: the numbers of a run are those of one process."""

import json
import re

import pytest
from conftest import (
    Running, add_dataset, run_processes, run_to_end, same_run, settings_of, words_of_real_text, write_dataset, write_model,
)
from shared import made_once

NUM_STEPS = 6
ROWS = 6  # of a step
CUTOFF = 240  # tokens of the longest rows; a process holds a fraction of these
KINDS = ("gemma3", "qwen3_moe", "qwen3_next")


@pytest.fixture(scope="session")
def models(models, place):
    def make(folder):
        return write_model(folder, folder.name.removeprefix("dealt_"))

    def make_teacher(folder):
        return write_model(folder, "qwen2", intermediate_size=96)

    return models | {kind: str(made_once(place / f"dealt_{kind}", make)) for kind in KINDS} | dict(
        teacher=str(made_once(place / "dealt_teacher", make_teacher)))


@pytest.fixture(scope="session")
def data(place):
    """Rows of few words and of many."""
    def make(folder):
        for seed, (name, num_rows, longest) in enumerate([("short", 20, 12), ("long", 8, 120), ("held_out", 5, 90)]):
            write_dataset(folder, num_rows=num_rows, seed=seed, shortest=3, longest=longest, name=name)
        words = words_of_real_text()
        rows = [dict(instruction=" ".join(words[i:i + 5]), chosen=" ".join(words[40 * i:40 * i + 4 + 7 * i % 60]),
                     rejected=" ".join(words[30 * i:30 * i + 3 + 11 * i % 40])) for i in range(1, 30)]
        add_dataset(folder, "pairs", rows, ranking=True, columns=dict(prompt="instruction", chosen="chosen", rejected="rejected"))
        add_dataset(folder, "verdicts", [row | dict(good=i % 3 > 0) for i, row in enumerate(rows)],
                    columns=dict(prompt="instruction", response="chosen", kto_tag="good"))

    return str(made_once(place / "mixed_data", make))


@pytest.fixture(scope="session")
def settings(models, data, place):
    def make(output_dir, model="qwen2", **keys):
        shared = dict(max_steps=NUM_STEPS, cutoff_len=CUTOFF, sequence_parallel_size=1, dataset="short,long",
                      eval_dataset="held_out", do_eval=True)
        if "ref_model" in keys:
            keys |= dict(ref_model=models[keys["ref_model"]])
        return settings_of(models[model], data, output_dir, **shared | keys)

    return make


def dealt(run):
    """The numbers of rows by their numbers of processes."""
    (line,) = re.findall(r"Dealt rows: (.*)\. Estimated", run.texts[0])
    return {int(degree): int(count.replace(",", "")) for count, degree in re.findall(r"([\d,]+) on (\d+) process", line)}


PAIRS = dict(dataset="pairs", eval_dataset="pairs", cutoff_len=600)
VERDICTS = dict(stage="kto", dataset="verdicts", eval_dataset="verdicts", cutoff_len=600, pref_ftx=0.1)
WAYS = {
    "three": (3, dict(sequence_parallel_size="auto")),
    "zigzag-ring": (3, dict(sequence_parallel_size="auto", sequence_parallel_mode="zigzag-ring", zero_stage=1)),
    "ZeRO 2": (2, dict(sequence_parallel_size="auto", zero_stage=2)),
    "ZeRO 3": (3, dict(sequence_parallel_size="auto", zero_stage=3, offload_optimizer=True)),
    "windows": (3, dict(model="gemma3", sequence_parallel_size="auto")),
    "experts": (3, dict(model="qwen3_moe", sequence_parallel_size="auto", moe_aux_loss_coef=0.01)),
    "recurrences": (3, dict(model="qwen3_next", sequence_parallel_size="auto")),
    "more tokens": (4, dict(sequence_parallel_size="auto", tokens_per_process=120, gradient_accumulation_steps=1,
                            compute_accuracy=True)),
    "fewer rows than processes": (5, dict(sequence_parallel_size="auto", gradient_accumulation_steps=1, max_samples=4,
                                          num_train_epochs=2, max_steps=-1)),
    "reward model": (3, dict(stage="rm", sequence_parallel_size="auto", pref_share_prompt=True) | PAIRS),
    "preferences": (3, dict(stage="dpo", sequence_parallel_size="auto", pref_share_prompt=True) | PAIRS),
    "preferences of an adapter": (3, dict(stage="dpo", sequence_parallel_size="auto", finetuning_type="lora", pref_ftx=0.1) | PAIRS),
    "means of all pairs": (3, dict(stage="dpo", sequence_parallel_size="auto", pref_loss="kto_pair", zero_stage=3) | PAIRS),
    "verdicts": (3, dict(sequence_parallel_size="auto") | VERDICTS),
    "a teacher": (3, dict(stage="distill_sft", sequence_parallel_size="auto", ref_model="teacher")),
    "a divergence": (3, dict(sequence_parallel_size="auto", use_asft_loss=True, ref_model="teacher")),
    "balanced": (2, dict(sequence_parallel_size=1, balance_batches=True)),
    "balanced experts": (2, dict(model="qwen3_moe", sequence_parallel_size=1, balance_batches=True, moe_aux_loss_coef=0.01)),
    "balanced means": (4, dict(stage="dpo", sequence_parallel_size=2, balance_batches=True, pref_loss="kto_pair") | PAIRS),
    "balanced verdicts": (2, dict(sequence_parallel_size=1, balance_batches=True, precompute_ref_log_probs=True) | VERDICTS),
    "balanced pairs": (6, dict(sequence_parallel_size=2, balance_batches=True, gradient_accumulation_steps=2, zero_stage=3)),
}
# Keys of a way that change the numbers of a run on one process too.
NUMERIC = ("stage", "dataset", "eval_dataset", "pref_share_prompt", "moe_aux_loss_coef", "compute_accuracy", "max_samples",
           "num_train_epochs", "max_steps", "model", "cutoff_len", "pref_loss", "pref_ftx", "finetuning_type", "ref_model",
           "use_asft_loss")


def groups_of(num_ranks, keys):
    """Data-parallel groups."""
    degree = keys["sequence_parallel_size"]
    return num_ranks if degree == "auto" else num_ranks // degree


@pytest.mark.parametrize("way", WAYS)
def test_the_numbers_of_one_process(way, settings, known_run, tmp_path):
    num_ranks, keys = WAYS[way]
    keys = dict(gradient_accumulation_steps=ROWS // groups_of(num_ranks, keys)) | keys
    rows = keys["gradient_accumulation_steps"] * groups_of(num_ranks, keys)
    numeric = {key: keys[key] for key in NUMERIC if key in keys}
    alone = known_run(settings("", **numeric, gradient_accumulation_steps=rows))
    run = run_to_end(settings(tmp_path / "run", **keys), num_ranks)
    same_run(run, alone)
    # Rewards are 0 as long as the model is its reference.
    rewards = {"rewards/accuracies", "rewards/margins"} if keys.get("stage") == "rm" else {"logps/chosen", "logps/rejected"}
    logged = set().union(*alone.history) & ({"eval_loss", "eval_accuracy"} | rewards)
    same_run(run, alone, keys=sorted(logged))
    assert [entry["total_tokens"] for entry in progress_of(run)] == [entry["total_tokens"] for entry in progress_of(alone)]
    counts = dealt(run)
    if keys["sequence_parallel_size"] == "auto":
        assert len(counts) > 1 and max(counts) > 1, counts
    else:
        assert list(counts) == [keys["sequence_parallel_size"]], counts


def progress_of(run):
    return [json.loads(line) for line in (run.output_dir / "trainer_log.jsonl").read_text().splitlines()]


def test_a_step_that_is_left_out(settings, tmp_path):
    """All ranks skip, and nothing that was under way is left over."""
    keys = dict(learning_rate=1e30, max_grad_norm=0, on_nonfinite="skip", lr_scheduler_type="constant", do_eval=False,
                eval_dataset=None, gradient_accumulation_steps=2, sequence_parallel_size="auto")
    run = run_to_end(settings(tmp_path / "run", **keys), 3)
    assert "The update is left out" in run.texts[0]


@pytest.mark.parametrize("of_stage", [dict(), dict(stage="dpo") | PAIRS], ids=["sft", "dpo"])
def test_resume_in_the_middle(of_stage, settings, tmp_path):
    """On as many processes, to the bit; on one more, to rounding."""
    keys = dict(sequence_parallel_size="auto", gradient_accumulation_steps=2, save_strategy="steps", save_steps=2) | of_stage
    whole = run_processes(settings(tmp_path / "whole", **keys), 3)
    part = run_processes(settings(tmp_path / "part", **keys), 3)
    resumed = run_processes(settings(tmp_path / "part", resume_from_checkpoint=str(part.output_dir / "checkpoint-4"), **keys), 3)
    for key in ("loss", "grad_norm"):
        assert resumed.logged(key) == whole.logged(key)
    other = keys | dict(gradient_accumulation_steps=3, resume_from_checkpoint=str(part.output_dir / "checkpoint-4"))
    same_run(run_processes(settings(tmp_path / "part", **other), 2), whole)


def test_machines_with_other_numbers_of_processes(settings, tmp_path):
    """Refused on all ranks before any group is made: each rank would make another dealing."""
    machines = [dict(LOCAL_WORLD_SIZE="2", LOCAL_RANK="0"), dict(LOCAL_WORLD_SIZE="2", LOCAL_RANK="1"),
                dict(LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")]
    run = Running(settings(tmp_path / "run", sequence_parallel_size="auto"), 3, own=machines).wait(30)
    assert set(run.statuses) == {1} and "Rank 2 has 1 process on its machine" in run.text, run.text


@pytest.mark.parametrize("keys, message", [
    (dict(sequence_parallel_size="auto", stage="grpo"), "sequence_parallel_size: auto is for the stages distill_sft, dpo, kto, pt, rm and sft"),
    (dict(balance_batches=True, stage="grpo"), "balance_batches is for the stages distill_sft, dpo, kto, pt, rm and sft"),
    (dict(sequence_parallel_size="auto", stage="dpo", precompute_ref_log_probs=True) | PAIRS, "computed before rows are dealt"),
    (dict(sequence_parallel_size="auto", stage="dpo", ref_model="llama") | PAIRS, "has other attention heads than"),
    (dict(sequence_parallel_size="auto", sequence_parallel_ring_degree=2), "sequence_parallel_ring_degree: 2 is given"),
    (dict(sequence_parallel_size="auto", model="qwen3_moe", expert_parallel_size=2), "processes that divide experts"),
    (dict(sequence_parallel_size="some"), "at least 1, or auto"),
    (dict(sequence_parallel_size="auto", packing=True), "packing fills all rows up to cutoff_len"),
    (dict(sequence_parallel_size="auto", stage="pt", dataset="texts"), "set packing: false"),
    (dict(tokens_per_process=100), "tokens_per_process is for sequence_parallel_size: auto"),
])
def test_refused(keys, message, settings, tmp_path):
    run = Running(settings(tmp_path / "run", **keys), 2).wait()
    assert run.status == 1 and message in run.text, run.text
