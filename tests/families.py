"""Every model family with every method of sequence parallelism: which small models, which rows, which runs, and what is
refused. The families and the methods are those of the program's registers."""

import functools
import itertools
import json
import math
import re
import subprocess

from conftest import (BUILD, PROGRAM, TOLERANCE, Running, add_dataset, modes_of_the_program, relative_difference, run_to_end,
                      settings_of, words_of_real_text, write_model)
from covering import covering_array
from shared import made_once

NUM_STEPS = 10
RANKS = [2, 3, 5]

# Two models of each family: one whose query heads 2 and 5 divide, one whose 3 divides. Where the family has sliding
# windows, that of the first is shorter than a shard of a long row on any number of ranks, that of the second longer than
# one, and shorter than the row.
QUERY_HEADS, KV_HEADS = {"tens": 10, "nines": 9}, {"tens": 2, "nines": 3}
WINDOWS = {"tens": 3, "nines": 50}
# Of keys and of values, where they are not 16.
HEAD_DIM, HEAD_DIMS = 16, {"gemma3_text": (32, 32), "deepseek_v3": (20, 10)}
# Of its published keys, by model_type: what write_model calls it, and what it gets beside its heads.
OF_WIDTH = ("llama", "qwen2", "mistral", "phi3", "gemma3")  # hidden_size is a multiple of the heads
WITH_WINDOW = ("mistral", "gemma3", "phi3", "gpt_oss")
KINDS = {"gemma3_text": "gemma3", "qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"}
HYBRIDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")

# One prompt and one answer of so many words for each row of two that make a step: rows of two tokens, which are fewer than
# three or five ranks, and rows of some seventy.
WORDS = [(1, 1), (1, 1), (12, 9), (1, 20), (1, 1), (16, 9), (2, 1), (7, 1), (20, 2), (1, 3)]
# The rows of a step one by one, or as ragged documents of one row; nothing else of a batch changes.
ROWS = {
    "row by row": dict(per_device_train_batch_size=1, gradient_accumulation_steps=2),
    "packed": dict(per_device_train_batch_size=2, gradient_accumulation_steps=1),
}
# Beside sft. Pairs share their prompt. Of kto alone the gradients of a step's two verdicts may cancel to nothing but roundings.
STAGES = {
    "pt": dict(stage="pt", dataset="texts", cutoff_len=48),
    "rm": dict(stage="rm", dataset="pairs", pref_share_prompt=True),
    "dpo": dict(stage="dpo", dataset="pairs", pref_share_prompt=True),
    "kto": dict(stage="kto", dataset="verdicts", pref_ftx=0.1),
}
STEPS_OF_STAGES = 5
# What may not change a number either.
MEMORY = {
    "plain": dict(),
    "no checkpoints": dict(disable_gradient_checkpointing=True),
    "ZeRO 1, kept MLPs": dict(zero_stage=1, kept_mlp_layers=1),
    "ZeRO 2, tiles": dict(zero_stage=2, tiled_mlp=3),
    "ZeRO 3, offloads": dict(zero_stage=3, offload_params=True, offload_optimizer=True, offload_activations=True),
}


@functools.cache
def families_of_the_program():
    """model_types, in the order of the program's register."""
    said = subprocess.run([PROGRAM, "help", "init"], capture_output=True, text=True, timeout=30, check=True).stdout
    (listed,) = re.findall(r"\(model_type (.*?)\)", said)
    families = re.split(r", | or ", listed)
    assert len(families) > 1 and all(re.fullmatch(r"\w+", family) for family in families), listed
    return families


def make_model(folder, family, heads):
    kind = KINDS.get(family, family)
    shape = dict(num_attention_heads=QUERY_HEADS[heads], num_key_value_heads=KV_HEADS[heads])
    if kind in OF_WIDTH:
        shape |= dict(hidden_size=QUERY_HEADS[heads] * HEAD_DIM)
    if kind in WITH_WINDOW:
        shape |= dict(sliding_window=WINDOWS[heads])
    if kind == "qwen3_moe":  # in all layers or in none
        shape |= dict(use_sliding_window=heads == "nines", sliding_window=WINDOWS[heads])
    if kind == "qwen3":  # in the second layer or in none
        shape |= dict(use_sliding_window=heads == "nines", sliding_window=WINDOWS[heads], max_window_layers=1)
    if kind in HYBRIDS and heads == "nines":
        shape |= dict(linear_num_value_heads=9)
    return write_model(folder, kind, **shape)


def make_rows(folder):
    words = words_of_real_text()

    def text(begin, count):
        return " ".join(words[begin : begin + count])

    rows = [dict(instruction=text(0, 1) if prompt == 1 else text(31 * i, prompt), input="",
                 output=text(0, 1) if answer == 1 else text(47 * i + 5, answer))
            for i, (prompt, answer) in enumerate(WORDS * (2 * NUM_STEPS // len(WORDS)))]
    add_dataset(folder, "chats", rows)
    columns = dict(prompt="instruction", query="input")
    add_dataset(folder, "pairs", [dict(instruction=row["instruction"], input="", chosen=row["output"], rejected=text(13 * i, 1 + i % 7))
                                  for i, row in enumerate(rows)],
                ranking=True, columns=columns | dict(chosen="chosen", rejected="rejected"))
    add_dataset(folder, "verdicts", [row | dict(label=i % 3 > 0) for i, row in enumerate(rows)],
                columns=columns | dict(response="output", kto_tag="label"))
    add_dataset(folder, "texts", [dict(text=f"{row['instruction']} {row['output']}") for row in rows], columns=dict(prompt="text"))


def refusal(run):
    """Who refuses what: the words of the program's error; None where it serves such a model on so many ranks. Everything
    else serves every family: whole heads go round rings and are gathered, and other kinds of Ulysses cut heads between
    ranks or add some."""
    num_heads, num_ranks = QUERY_HEADS[run["heads"]], run["ranks"]
    if run["method"] in ("ulysses", "async-ulysses") and num_heads % num_ranks:
        return f"cannot split {num_heads} attention heads"
    slices = num_ranks // math.gcd(num_heads, num_ranks)
    head_dims = HEAD_DIMS.get(run["family"], (HEAD_DIM, HEAD_DIM))
    if run["method"] == "xtuner-ulysses" and any(head_dim % slices for head_dim in head_dims):
        return f"cannot split {num_heads} attention heads over {num_ranks} ranks: each would be cut in {slices} slices"
    return None


AXES = dict(family=families_of_the_program(), method=modes_of_the_program(), ranks=RANKS, heads=list(QUERY_HEADS),
            rows=list(ROWS), memory=list(MEMORY))


def is_served(run):
    return refusal(run) is None


def all_pairs():
    """Runs in which every two values of any two axes meet."""
    return covering_array(AXES, list(itertools.combinations(AXES, 2)), is_served)


def some_pairs():
    """As many as families and ranks want: these do not meet each method with each family, nor either with each way to save
    memory."""
    left_out = {("family", "method"), ("family", "memory"), ("method", "memory")}
    return covering_array(AXES, [pair for pair in itertools.combinations(AXES, 2) if pair not in left_out], is_served)


def of_stages(pairs):
    axes = dict(family=AXES["family"], stage=list(STAGES), method=AXES["method"], ranks=[2, 3], heads=AXES["heads"])
    return covering_array(axes, pairs, is_served)


def all_stages():
    """Each stage with each family, and with each method."""
    return of_stages([("family", "stage"), ("stage", "method"), ("stage", "ranks")])


def some_stages():
    """Each family with one stage after the other."""
    by_family = {}
    for run in all_stages():
        by_family.setdefault(run["family"], []).append(run)
    return [runs[i % len(runs)] for i, runs in enumerate(by_family.values())]


def all_refused():
    runs = [dict(zip(AXES, values)) for values in itertools.product(*list(AXES.values())[:4], list(ROWS)[:1], list(MEMORY)[:1])]
    return [run for run in runs if not is_served(run)]


def some_refused():
    """Each method, number of ranks and kind of model, with one family after the other."""
    by_what = {}
    for run in all_refused():
        by_what.setdefault((run["method"], run["ranks"], run["heads"]), []).append(run)
    return [runs[i % len(runs)] for i, runs in enumerate(by_what.values())]


def name_of(run):
    return ", ".join(str(value) for value in run.values())


class Families:
    """Models and runs in a folder that all of pytest's workers share."""

    def __init__(self, place, known_run):
        self.place, self.known_run = place, known_run

    def settings(self, run, output_dir):
        name = f"{run['family']}_with_{run['heads']}"
        model = made_once(self.place / name, lambda folder: make_model(folder, run["family"], run["heads"]))
        rows = made_once(self.place / "rows_of_families", make_rows)
        return settings_of(model, rows, output_dir, template="empty", disable_shuffling=True, learning_rate=3e-4,
                           max_steps=NUM_STEPS)

    def settings_of_run(self, run, output_dir):
        shared = dict(sequence_parallel_size=run["ranks"], sequence_parallel_mode=run["method"])
        return self.settings(run, output_dir) | ROWS[run["rows"]] | MEMORY[run["memory"]] | shared

    def check(self, run, output_dir):
        """Each step's loss and gradient norm are those of one process."""
        alone = self.known_run(self.settings(run, "") | ROWS["row by row"])
        many = run_to_end(self.settings_of_run(run, output_dir), run["ranks"])
        assert f"sequence parallelism: {run['method']}" in many.texts[0]
        for key in ("loss", "grad_norm"):
            assert len(many.logged(key)) == NUM_STEPS
            assert relative_difference(many.logged(key), alone.logged(key)) < TOLERANCE, key

    def check_stage(self, run, output_dir):
        """As check(), where two rows of pairs or verdicts are a batch."""
        keys = STAGES[run["stage"]] | ROWS["packed"] | dict(max_steps=STEPS_OF_STAGES)
        alone = self.known_run(self.settings(run, "") | keys)
        shared = dict(sequence_parallel_size=run["ranks"], sequence_parallel_mode=run["method"])
        many = run_to_end(self.settings(run, output_dir) | keys | shared, run["ranks"])
        for key in ("loss", "grad_norm"):
            assert len(many.logged(key)) == STEPS_OF_STAGES
            assert relative_difference(many.logged(key), alone.logged(key)) < TOLERANCE, key

    def check_refused(self, run, output_dir):
        """By the same error on every rank, which names the method and others that serve the model."""
        finished = Running(self.settings_of_run(run, output_dir), run["ranks"]).wait()
        assert finished.statuses == [1] * run["ranks"], finished.texts
        for text in finished.texts:
            assert f"sequence_parallel_mode: {run['method']} {refusal(run)}" in text and "Modes that can split them" in text

    def lengths_of_rows(self, output_dir):
        """In tokens, as Longspan makes the rows."""
        config = output_dir.parent / "rows.json"
        config.write_text(json.dumps(self.settings(dict(family="llama", heads="tens"), output_dir)))
        said = subprocess.run([BUILD / "data_probe", config], check=True, capture_output=True, text=True).stdout
        return [len(json.loads(line)["input_ids"]) for line in said.splitlines()]
