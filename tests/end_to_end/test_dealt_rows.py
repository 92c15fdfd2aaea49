"""Rows that are dealt to processes by their work: the numbers of a run are those of one process."""

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

    return models | {kind: str(made_once(place / f"dealt_{kind}", make)) for kind in KINDS}


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

    return str(made_once(place / "mixed_data", make))


@pytest.fixture(scope="session")
def settings(models, data, place):
    """Six steps of six rows on any number of processes, where each is a data-parallel group."""
    def make(output_dir, model="qwen2", num_ranks=1, **keys):
        shared = dict(max_steps=NUM_STEPS, cutoff_len=CUTOFF, gradient_accumulation_steps=ROWS // num_ranks,
                      sequence_parallel_size=1, dataset="short,long", eval_dataset="held_out", do_eval=True)
        return settings_of(models[model], data, output_dir, **shared | keys)

    return make


def dealt(run):
    """The numbers of rows by their numbers of processes."""
    (line,) = re.findall(r"Dealt rows: (.*)\. Estimated", run.texts[0])
    return {int(degree): int(count.replace(",", "")) for count, degree in re.findall(r"([\d,]+) on (\d+) process", line)}


WAYS = {
    "three": (3, dict(sequence_parallel_size="auto")),
    "zigzag-ring": (3, dict(sequence_parallel_size="auto", sequence_parallel_mode="zigzag-ring", bf16=False, zero_stage=1)),
    "ZeRO 2": (2, dict(sequence_parallel_size="auto", zero_stage=2)),
    "ZeRO 3": (3, dict(sequence_parallel_size="auto", zero_stage=3, offload_optimizer=True)),
    "windows": (3, dict(model="gemma3", sequence_parallel_size="auto")),
    "experts": (3, dict(model="qwen3_moe", sequence_parallel_size="auto", moe_aux_loss_coef=0.01)),
    "recurrences": (3, dict(model="qwen3_next", sequence_parallel_size="auto")),
    "packed": (3, dict(sequence_parallel_size="auto", neat_packing=True)),
    "reward model": (3, dict(stage="rm", dataset="pairs", eval_dataset="pairs", sequence_parallel_size="auto",
                             pref_share_prompt=True, cutoff_len=600)),
    "balanced": (2, dict(sequence_parallel_size=1, balance_batches=True)),
    "balanced pairs": (6, dict(sequence_parallel_size=2, balance_batches=True, gradient_accumulation_steps=2, zero_stage=3)),
}
# Keys of a way that change the numbers of a run on one process too.
NUMERIC = ("stage", "dataset", "eval_dataset", "pref_share_prompt", "moe_aux_loss_coef", "neat_packing", "model", "cutoff_len")


@pytest.mark.parametrize("way", WAYS)
def test_the_numbers_of_one_process(way, settings, known_run, tmp_path):
    num_ranks, keys = WAYS[way]
    alone = known_run(settings("", **{key: keys[key] for key in NUMERIC if key in keys}))
    run = run_to_end(settings(tmp_path / "run", num_ranks=num_ranks, **keys), num_ranks)
    same_run(run, alone)
    same_run(run, alone, keys=("eval_loss",))
    counts = dealt(run)
    assert sum(counts.values()) >= NUM_STEPS
    if keys["sequence_parallel_size"] == "auto":
        assert max(counts) > 1 and (len(counts) > 1 or "neat_packing" in keys), counts
    else:
        assert list(counts) == [keys["sequence_parallel_size"]], counts


def test_dropout_is_equal_on_all_ranks_of_a_row(settings, tmp_path):
    """Of latents that travel, each rank expands those of others: with other dropout, its keys would be others."""
    keys = dict(sequence_parallel_size="auto", finetuning_type="lora", lora_dropout=0.3)
    runs = [run_to_end(settings(tmp_path / f"run{i}", num_ranks=3, **keys), 3) for i in range(2)]
    assert runs[0].logged("loss") == runs[1].logged("loss")


def test_resume_in_the_middle(settings, tmp_path):
    """On as many processes, to the bit."""
    keys = dict(num_ranks=3, sequence_parallel_size="auto", save_strategy="steps", save_steps=2)
    whole = run_processes(settings(tmp_path / "whole", **keys), 3)
    part = run_processes(settings(tmp_path / "part", **keys), 3)
    resumed = run_processes(settings(tmp_path / "part", resume_from_checkpoint=str(part.output_dir / "checkpoint-4"), **keys), 3)
    for key in ("loss", "grad_norm"):
        assert resumed.logged(key) == whole.logged(key)


@pytest.mark.parametrize("keys, message", [
    (dict(sequence_parallel_size="auto", stage="dpo", dataset="pairs"), "sequence_parallel_size: auto is for the stages pt, rm and sft"),
    (dict(balance_batches=True, stage="dpo", dataset="pairs"), "balance_batches is for the stages pt, rm and sft"),
    (dict(sequence_parallel_size="auto", sequence_parallel_ring_degree=2), "sequence_parallel_ring_degree: 2 is given"),
    (dict(sequence_parallel_size="auto", model="qwen3_moe", expert_parallel_size=2), "processes that divide experts"),
    (dict(sequence_parallel_size="some"), "at least 1, or auto"),
])
def test_refused(keys, message, settings, tmp_path):
    run = Running(settings(tmp_path / "run", **keys), 2).wait()
    assert run.status == 1 and message in run.text, run.text
