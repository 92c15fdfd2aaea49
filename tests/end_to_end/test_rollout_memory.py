"""The account of memory of runs on rollouts and with a teacher, against what is measured; and the row that it counts."""

import json
import random

import pytest
from conftest import run_processes, run_to_end, settings_of, write_model
from device import accounted
from shared import made_once
from test_rollouts import questions

PROMPT, ANSWER, GENERATIONS = 1500, 500, 3
LONGEST = PROMPT - 1 + GENERATIONS * (ANSWER + 1)  # each answer has a copy of the prompt's last token


def rollouts(path, groups=2, **fields):
    """Groups of one long row each, whose rollouts share the prompt."""
    rng = random.Random(3)

    def ids(count):
        return [rng.randrange(5, 80) for _ in range(count)]

    lines = []
    for group in range(groups):
        prompt = ids(PROMPT)
        for i in range(GENERATIONS):
            answer = [10 + i, *ids(ANSWER - 1)]
            lines.append(json.dumps(dict(group=group, prompt_ids=prompt, completion_ids=answer, reward=float(i)) | fields))
    path.write_text("\n".join(lines) + "\n")


def file_settings(model, folder, **keys):
    settings = settings_of(model, folder, folder / "run", stage="grpo") | dict(
        rollouts=str(folder / "rollouts.jsonl"), num_generations=GENERATIONS, gradient_accumulation_steps=1, max_steps=2,
        cutoff_len=PROMPT + ANSWER)
    return {key: value for key, value in settings.items() if key not in ("dataset", "dataset_dir")} | keys


@pytest.fixture(scope="session")
def teacher(place):
    """A teacher whose pass takes more than all of a step of the small policy."""
    shape = dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4)
    return str(made_once(place / "large_teacher", lambda folder: write_model(folder, "qwen2", **shape)))


def check_account(run, num_ranks, least=0.75, most=1.3):
    memory = json.loads((run.output_dir / "memory.json").read_text())
    assert len(memory["measured"]) == num_ranks
    for rank in memory["measured"]:
        assert least < accounted(memory) / rank["device"] < most, memory
    return memory


DISTILL = dict(stage="distill")
WAYS = {
    "grpo": dict(),
    "grpo, offloaded": dict(offload_activations=True, tiled_mlp=8),
    "grpo, reference": dict(beta=0.04),
    "grpo, ulysses": dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="ulysses"),
    "grpo, allgather": dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="allgather"),
    "grpo, large reference": dict(beta=0.04, ref_model="teacher"),
    "distill": DISTILL | dict(ref_model="teacher"),
    "distill, bf16": DISTILL | dict(ref_model="teacher", bf16=True),
    "distill, forward": DISTILL | dict(ref_model="teacher", distill_beta=0.0),
    "distill, top k": DISTILL | dict(ref_model="teacher", distill_top_k=8),
    "distill, lora": DISTILL | dict(ref_model="teacher", finetuning_type="lora", offload_activations=True),
    "distill, ZeRO 3": DISTILL | dict(ref_model="teacher", num_ranks=2, zero_stage=3),
    "distill, ulysses": DISTILL | dict(ref_model="teacher", num_ranks=2, sequence_parallel_size=2,
                                       sequence_parallel_mode="ulysses", gradient_accumulation_steps=2, max_steps=1),
}


@pytest.mark.parametrize("way", WAYS)
def test_account_says_what_is_measured(way, models, teacher, tmp_path):
    keys = dict(WAYS[way])
    num_ranks = keys.pop("num_ranks", 1)
    if "ref_model" in keys:
        keys["ref_model"] = teacher
    rollouts(tmp_path / "rollouts.jsonl", groups=4)
    run = run_processes(file_settings(models["qwen2"], tmp_path, **keys), num_ranks, timeout=120)
    memory = check_account(run, num_ranks)
    facts = memory["facts"]
    assert (facts["num_tokens"], facts["num_labels"]) == (LONGEST, GENERATIONS * ANSWER)
    lines = {line["name"]: line["device"] for line in memory["account"]}
    has_reference = "beta" in keys or "ref_model" in keys
    assert ("Reference's pass" in lines) == ("Reference model" in lines) == has_reference
    if "ref_model" in keys and num_ranks == 1 and "bf16" not in keys and "finetuning_type" not in keys:
        assert lines["Reference model"] > 8 * lines["Parameters"]


@pytest.fixture(scope="session")
def large_vocabulary(place):
    """The head is most of the models: 20000 tokens."""
    def make(name, **shape):
        shape = dict(vocab_size=20000, num_attention_heads=4, num_key_value_heads=4) | shape
        return str(made_once(place / f"vocabulary_{name}", lambda folder: write_model(folder, "llama", **shape)))

    return make("student", hidden_size=64), make("teacher", hidden_size=192)


@pytest.mark.parametrize("keys", [dict(), dict(distill_beta=1.0), dict(distill_top_k=20), dict(bf16=True)],
                         ids=lambda keys: "-".join(keys) or "plain")
def test_account_of_both_heads(keys, large_vocabulary, tmp_path):
    """A chunk of logits of teacher and policy together."""
    student, other = large_vocabulary
    rollouts(tmp_path / "rollouts.jsonl")
    run = run_processes(file_settings(student, tmp_path, stage="distill", ref_model=other, **keys), timeout=120)
    check_account(run, 1, least=0.93, most=1.1)


def said_row(run):
    said = [line for line in run.texts[0].splitlines() if line.startswith("The longest row")]
    assert len(said) == 1, run.texts[0]
    return said[0], json.loads((run.output_dir / "memory.json").read_text())["facts"]["num_tokens"]


def test_row_of_a_file(models, tmp_path):
    """All groups of the run; and fewer, or with max_staleness: then the bound."""
    path = tmp_path / "rollouts.jsonl"
    rollouts(path, groups=4, policy_version=0)
    keys = dict(cutoff_len=2200, max_steps=2)
    said, tokens = said_row(run_to_end(file_settings(models["qwen2"], tmp_path, **keys)))
    assert said == f"The longest row has {LONGEST:,} tokens, by the 2 groups of {path} that the run trains on."
    assert tokens == LONGEST
    said, tokens = said_row(run_to_end(file_settings(models["qwen2"], tmp_path, max_staleness=9, overwrite_output_dir=True, **keys)))
    assert said == ("The longest row may have 6,600 tokens: 1 group of 3 rollouts, each of 2,200 tokens (cutoff_len), if they "
                    f"share no tokens. In {path}, the longest row of the first 2 groups has {LONGEST:,} tokens.")
    assert tokens == GENERATIONS * 2200


@pytest.mark.parametrize("ranks", [1, 2])
def test_row_of_sampled_answers(ranks, models, tmp_path):
    """The trained rows are at most as long, and as long where every answer is."""
    data = questions(tmp_path / "data")
    settings = settings_of(models["qwen2"], data, tmp_path / "run", stage="grpo", dataset="questions") | dict(
        rollout="self", rewards="length", num_generations=3, max_completion_length=12, cutoff_len=256,
        per_device_train_batch_size=2, gradient_accumulation_steps=1, max_steps=3, sequence_parallel_size=ranks)
    run = run_to_end(settings, ranks)
    said, tokens = said_row(run)
    lengths, longest = [], 0
    for batch in sorted((run.output_dir / "rollouts").glob("batch-*")):
        rows = [json.loads(line) for line in batch.read_text().splitlines()]
        prompts = [len(row["mask"]) - sum(row["mask"]) for row in rows]
        lengths.append(sum(prompts[0::3]) - 2 + sum(sum(row["mask"]) + 1 for row in rows))
        longest = max(longest, *prompts)
    assert max(lengths) <= tokens == 2 * (longest - 1 + 3 * 13)
    assert said == (f"The longest row may have {tokens:,} tokens: 2 groups of a prompt of {longest} tokens with 3 answers of at "
                    "most 12 tokens (max_completion_length).")
