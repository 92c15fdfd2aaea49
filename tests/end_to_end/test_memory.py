"""What saves memory changes no number, and what is measured is what the account says."""

import json
import pathlib
import re

import pytest
from conftest import Running, same_run, settings_of, write_dataset

WAYS = {
    "memory": {"offload_activations": True},
    "disk": {"offload_activations": "disk"},
}


def numbers_of(run):
    return run.logged("loss"), run.logged("grad_norm")


def weights_of(run):
    files = sorted(run.output_dir.glob("*.safetensors"))
    assert files
    return [file.read_bytes() for file in files]


@pytest.fixture
def pairs(data, tmp_path):
    rows = json.loads((pathlib.Path(data) / "chats.json").read_text())
    folder = tmp_path / "pairs"
    folder.mkdir()
    pairs = [{"instruction": row["instruction"], "chosen": row["output"], "rejected": row["instruction"]}
             for row in rows]
    (folder / "pairs.json").write_text(json.dumps(pairs))
    columns = {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}
    (folder / "dataset_info.json").write_text(json.dumps(
        {"pairs": {"file_name": "pairs.json", "ranking": True, "columns": columns}}))
    return str(folder)


CASES = {
    "alone": dict(),
    "lora": dict(finetuning_type="lora", lora_dropout=0.1),
    "bf16": dict(bf16=True),
    "ulysses": dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="ulysses"),
    "waves": dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="ulysses",
                  sequence_parallel_head_waves=7),
    "async": dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="async-ulysses"),
    "ring": dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring"),
    "dpo": dict(stage="dpo"),
}


@pytest.mark.parametrize("case", CASES)
def test_offloaded_activations_are_the_same_bits(train, pairs, tmp_path, case):
    changes = CASES[case] | {"max_steps": 3}
    if changes.get("stage") == "dpo":
        changes |= {"dataset": "pairs", "dataset_dir": pairs}
    expected = train(**changes)
    for way, keys in WAYS.items():
        keys = dict(keys)
        if way == "disk":
            keys["offload_folder"] = str(tmp_path / "offload")
        offloaded = train(**(changes | keys))
        assert numbers_of(offloaded) == numbers_of(expected), way
        assert weights_of(offloaded) == weights_of(expected), way
    assert not list((tmp_path / "offload").iterdir())


@pytest.mark.parametrize("model, keys, tiles", [
    ("qwen2", dict(), [1, 3, 8]),
    ("qwen2", dict(disable_gradient_checkpointing=True), [5]),
    # Two data-parallel groups of two that share rows.
    ("llama", dict(num_ranks=4, sequence_parallel_size=2, gradient_accumulation_steps=2), [3]),
    ("llama", dict(num_ranks=4, sequence_parallel_size=2, gradient_accumulation_steps=2,
                   disable_gradient_checkpointing=True), [3]),
], ids=["one process", "without checkpointing", "4 ranks", "4 ranks without checkpointing"])
def test_tiled_mlp_is_the_untiled_one(model, keys, tiles, train):
    expected = train(model, max_steps=20, **keys)
    assert len(expected.logged("loss")) == 20
    for n in tiles:
        tiled = train(model, max_steps=20, tiled_mlp=n, **keys)
        # One tile is none. With more, gradients of the weights are sums in another order.
        same_run(tiled, expected, tolerance=1e-6)
        if n == 1:
            assert numbers_of(tiled) == numbers_of(expected)


def test_refused_in_one_sentence(models, data, tmp_path):
    def complaint(**changes):
        settings = settings_of(models["qwen2"], data, tmp_path / "refused", **changes)
        finished = Running(settings).wait()
        assert finished.status == 1, finished.text
        return finished.text

    assert "remove one of them" in complaint(offload_activations=True, disable_gradient_checkpointing=True)
    assert "offload_folder is for offload_activations: disk" in complaint(offload_folder="x")
    (tmp_path / "file").write_text("x")
    text = complaint(offload_activations="disk", offload_folder=str(tmp_path / "file"))
    assert f"offload_folder {tmp_path / 'file'}" in text and "offload_activations: true" in text


LONG = 3000


@pytest.fixture
def long_rows(data, tmp_path):
    folder = tmp_path / "long"
    write_dataset(folder, num_rows=2, shortest=LONG, longest=LONG, name="chats")
    return str(folder)


@pytest.mark.parametrize("changes", [
    dict(),
    dict(disable_gradient_checkpointing=True),
    dict(offload_activations=True, tiled_mlp=8),
    dict(finetuning_type="lora"),
    dict(bf16=True),
    dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="ulysses", offload_activations=True),
], ids=lambda changes: "-".join(changes) or "plain")
def test_account_says_what_is_measured(train, long_rows, changes):
    run = train(dataset_dir=long_rows, cutoff_len=LONG, max_steps=2, gradient_accumulation_steps=1, **changes)
    memory = json.loads((run.output_dir / "memory.json").read_text())
    assert memory["facts"]["num_tokens"] == LONG
    assert len(memory["measured"]) == changes.get("num_ranks", 1)
    for rank in memory["measured"]:
        assert 0.75 < memory["device"] / rank["device"] < 1.3, memory
        if memory["host"]:
            assert 0.85 < memory["host"] / rank["host"] < 1.2, memory
        assert rank["resident"] > rank["device"]
    assert re.search(r"Memory of a rank +device +host", run.texts[0])
    assert re.search(r"Measured, rank 0 +[\d.]+ MiB", run.texts[0])
