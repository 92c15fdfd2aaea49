"""What saves memory changes no number, and what is measured is what the account says."""

import json
import math
import os
import pathlib
import re
import sys

import pytest
from conftest import ROOT, TOLERANCE, Running, run_processes, same_run, settings_of, write_dataset, write_model
from device import accounted
from grouped_bits import in_four_bits
from safetensors.torch import load_file
from shared import made_once
from tolerance import ROUNDING

WAYS = {
    "memory": {"offload_activations": True}, "disk": {"offload_activations": "disk"},
}
WIDE = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=3)


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


KEPT = CASES | {
    "offloaded": dict(offload_activations=True),
    "ZeRO 3": dict(num_ranks=2, zero_stage=3),
    "accumulated, freeze": dict(gradient_accumulation_steps=2, finetuning_type="freeze", freeze_trainable_layers=1),
}


@pytest.mark.parametrize("case", KEPT)
def test_kept_mlps_are_the_same_bits(train, pairs, case):
    changes = KEPT[case] | {"max_steps": 3}
    if changes.get("stage") == "dpo":
        changes |= {"dataset": "pairs", "dataset_dir": pairs}
    expected = train(**(changes | dict(kept_mlp_layers=0)))
    assert "Gate and up" not in expected.texts[0]
    for layers, count, said in (
            (1, 1, r"1 of 2 layers \(kept_mlp_layers\)\."),
            (-1, 2, r"2 of 2 layers: a rank then takes [\d.]+ [KMG]iB of [\d.]+ [KMGT]iB, by the account\.")):
        kept = train(**(changes | dict(kept_mlp_layers=layers)))
        assert re.search(f"Gate and up are kept of {said}", kept.texts[0]), kept.texts[0]
        assert json.loads((kept.output_dir / "memory.json").read_text())["facts"]["kept_mlp_layers"] == count
        assert numbers_of(kept) == numbers_of(expected), layers
        assert weights_of(kept) == weights_of(expected), layers


@pytest.mark.parametrize("model, keys, tiles", [
    ("qwen2", dict(), [1, 3, 8]),
    ("qwen2", dict(disable_gradient_checkpointing=True), [5]),
    # Two data-parallel groups of two that share rows.
    ("llama", dict(num_ranks=4, sequence_parallel_size=2, gradient_accumulation_steps=2), [3]),
    ("llama", dict(num_ranks=4, sequence_parallel_size=2, gradient_accumulation_steps=2,
                   disable_gradient_checkpointing=True), [3]),
], ids=["one process", "without checkpointing", "4 ranks", "4 ranks without checkpointing"])
def test_tiled_mlp_is_the_untiled_one(model, keys, tiles, train):
    keys = dict(keys, max_steps=10, learning_rate=3e-4)
    expected = train(model, **keys)
    assert len(expected.logged("loss")) == 10
    for n in tiles:
        tiled = train(model, tiled_mlp=n, **keys)
        # One tile is none. With more, gradients of the weights are sums in another order.
        same_run(tiled, expected)
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
    assert "remove one of them" in complaint(kept_mlp_layers=1, tiled_mlp=2)
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
    dict(finetuning_type="lora", bf16=True),
    dict(bf16=True),
    dict(kept_mlp_layers=-1),
    dict(kept_mlp_layers=-1, bf16=True),
    dict(kept_mlp_layers=1, offload_activations=True),
    dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="ulysses", offload_activations=True),
], ids=lambda changes: "-".join(changes) or "plain")
def test_account_says_what_is_measured(train, long_rows, changes):
    run = train(way=run_processes, dataset_dir=long_rows, cutoff_len=LONG, max_steps=2, gradient_accumulation_steps=1, **changes)
    memory = json.loads((run.output_dir / "memory.json").read_text())
    assert memory["facts"]["num_tokens"] == LONG
    assert len(memory["measured"]) == changes.get("num_ranks", 1)
    for rank in memory["measured"]:
        assert 0.85 < accounted(memory) / rank["device"] < 1.2, memory
        if memory["host"]:
            assert 0.85 < memory["host"] / rank["host"] < 1.2, memory
        assert rank["resident"] > rank["device"]
    assert re.search(r"Memory of a rank +device +host", run.texts[0])
    assert re.search(r"Measured, rank 0 +[\d.]+ MiB", run.texts[0])


@pytest.fixture(scope="session")
def wide_heads(place):
    """wide_heads(window): a model that is mostly attention, with keys and values as wide as queries."""
    def model(window):
        shape = dict(hidden_size=64, intermediate_size=64, num_attention_heads=8, num_key_value_heads=8, head_dim=32,
                     sliding_window=window, max_position_embeddings=4096)
        return str(made_once(place / f"wide_heads_{window}", lambda folder: write_model(folder, "mistral", **shape)))

    return model


@pytest.mark.long
@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize("mode", ["allgather", "llama3", "ring", "zigzag-ring", "ulysses"])
def test_account_knows_what_a_method_holds(wide_heads, long_rows, tmp_path, mode, window):
    """Four ranks: the last one gathers four times its own keys, in a window next to none."""
    settings = settings_of(wide_heads(window), long_rows, tmp_path / "run", cutoff_len=LONG, max_steps=1,
                           gradient_accumulation_steps=1, sequence_parallel_size=4, sequence_parallel_mode=mode)
    run = run_processes(settings, num_ranks=4, timeout=300)
    memory = json.loads((run.output_dir / "memory.json").read_text())
    measured = max(rank["device"] for rank in memory["measured"])
    assert 0.85 < accounted(memory) / measured < 1.15, memory


@pytest.fixture(scope="session")
def wide(place):
    """A model whose states are more than what a short row needs: 2.6 million numbers."""
    return str(made_once(place / "wide", lambda folder: write_model(folder, "llama", **WIDE)))


@pytest.fixture
def short(wide, data, tmp_path):
    """short(num_ranks, **keys): steps on rows of some 50 tokens."""
    count = 0

    def run(num_ranks=1, **changes):
        nonlocal count
        count += 1
        settings = dict(max_steps=2, gradient_accumulation_steps=1, cutoff_len=64) | changes
        run = Running(settings_of(wide, data, tmp_path / f"short{count}", **settings), num_ranks).wait()
        assert run.status == 0, run.text
        return json.loads((run.output_dir / "memory.json").read_text())

    return run


OFFLOAD = dict(offload_optimizer=True, offload_params=True)


@pytest.mark.parametrize("changes", [
    dict(),
    dict(num_ranks=2, zero_stage=1), dict(num_ranks=2, zero_stage=1, bf16=True),
    dict(num_ranks=2, zero_stage=2),
    dict(num_ranks=2, zero_stage=3),
    dict(num_ranks=2, zero_stage=2, offload_optimizer=True),
    dict(num_ranks=2, zero_stage=3, offload_optimizer=True),
    dict(num_ranks=2, zero_stage=3, **OFFLOAD),
    dict(num_ranks=2, zero_stage=3, bf16=True, **OFFLOAD),
    dict(num_ranks=2, zero_stage=3, bf16=True, finetuning_type="lora", lora_rank=4),
    dict(num_ranks=2, zero_stage=3, sequence_parallel_size=2, offload_activations=True, tiled_mlp=4, **OFFLOAD),
    dict(stage="dpo", dataset="pairs"),
    dict(stage="dpo", dataset="pairs", num_ranks=2, zero_stage=3, **OFFLOAD),
], ids=lambda changes: " ".join(str(key) for key in changes) or "plain")
def test_account_of_divided_states(short, pairs, changes):
    changes = changes | ({"dataset_dir": pairs} if "stage" in changes else {})
    memory = short(**changes)
    assert len(memory["measured"]) == changes.get("num_ranks", 1)
    for rank in memory["measured"]:
        assert 0.9 < accounted(memory) / rank["device"] < 1.15, memory
        assert memory["host"] == rank["host"] == 0 or 0.97 < memory["host"] / rank["host"] < 1.03, memory


@pytest.mark.parametrize("changes", [
    dict(), dict(bf16=True, use_dora=True), dict(bf16=True, disable_gradient_checkpointing=True), *(dict(num_ranks=2, zero_stage=n, bf16=True) for n in (2, 3)),
], ids=lambda changes: " ".join(changes) or "plain")
def test_account_of_four_bits(short, wide, changes):
    """Only the matrices of the layer in use are unpacked."""
    keys = changes | dict(finetuning_type="lora", lora_rank=4)
    packed, plain = short(quantization_bit=4, **keys), short(**keys)
    for rank in packed["measured"]:
        assert 0.95 < accounted(packed) / rank["device"] < 1.05, packed
    num_layers, ranks = 3, changes.get("num_ranks", 1) if changes.get("zero_stage") == 3 else 1
    in_layers = sum(tensor.numel() for name, tensor in load_file(f"{wide}/model.safetensors").items() if "_proj" in name)
    element = 2 if "bf16" in changes else 4
    # Between uses; ZeRO 3 also gathers two layers as they are used, where 4 bits gather one as it is held.
    spared = in_layers * (element - 0.52) / ranks - in_layers / num_layers * (element + 0.52 if ranks == 1 else 0)
    assert packed["measured"][0]["device"] < plain["measured"][0]["device"] - 0.9 * spared, (packed, plain)


@pytest.mark.parametrize("bits", [dict(), dict(quantization_bit=8)], ids=["folder in 4 bits", "8 bits"])
@pytest.mark.parametrize("changes", [dict(), dict(num_ranks=2, zero_stage=3, bf16=True)], ids=["plain", "zero3"])
def test_account_of_codes(short, wide, place, changes, bits):
    four_bits = made_once(place / "wide_in_awq", lambda folder: in_four_bits(write_model(folder, "llama", **WIDE), "awq"))
    memory = short(model_name_or_path=str(wide if bits else four_bits), finetuning_type="lora", lora_rank=4, **bits, **changes)
    assert all(0.95 < accounted(memory) / rank["device"] < 1.05 for rank in memory["measured"]), memory


@pytest.fixture(scope="session")
def large_vocabulary(place):
    """The head is most of the model, as in small ones of many languages: 20000 tokens, 2.6 million numbers."""
    return str(made_once(place / "vocabulary", lambda folder: write_model(folder, "llama", vocab_size=20000, hidden_size=128)))


@pytest.mark.parametrize("changes", [
    dict(),
    dict(bf16=True),
    dict(pure_bf16=True),
    dict(num_ranks=2, zero_stage=2),
    dict(num_ranks=2, zero_stage=3, bf16=True),
], ids=lambda changes: " ".join(changes) or "plain")
def test_account_of_a_large_vocabulary(large_vocabulary, data, tmp_path, changes):
    """The head's gradient is there once, whatever the number of rows of a step; casts and sums of it are counted."""
    changes = dict(changes)
    num_ranks = changes.pop("num_ranks", 1)
    settings = dict(max_steps=2, gradient_accumulation_steps=2, cutoff_len=128) | changes
    run = Running(settings_of(large_vocabulary, data, tmp_path / "run", **settings), num_ranks).wait()
    assert run.status == 0, run.text
    memory = json.loads((run.output_dir / "memory.json").read_text())
    for rank in memory["measured"]:
        assert 0.93 < accounted(memory) / rank["device"] < 1.1, memory


@pytest.mark.long
def test_account_of_bf16_on_a_shared_row(large_vocabulary, tmp_path):
    """Two rows a step, packed of 16 documents, or of two short ones where products in bf16 are slow. What bf16 makes of
    the head in use, and a second gradient of it, were once a third of the whole."""
    processor = pathlib.Path("/proc/cpuinfo").read_text()
    fast = " avx512_bf16 " in processor and "ONEDNN_MAX_CPU_ISA" not in os.environ
    documents, length = (16, 1024) if fast else (2, 512)
    write_dataset(tmp_path / "long", num_rows=2 * documents, shortest=1100, longest=1100)
    settings = settings_of(large_vocabulary, tmp_path / "long", tmp_path / "run", bf16=True, offload_activations=True,
                           cutoff_len=length, per_device_train_batch_size=documents, gradient_accumulation_steps=2,
                           max_steps=1, sequence_parallel_size=2)
    run = Running(settings, num_ranks=2).wait(timeout=300)
    assert run.status == 0, run.text
    memory = json.loads((run.output_dir / "memory.json").read_text())
    assert memory["facts"]["num_tokens"] == documents * length
    for rank in memory["measured"]:
        assert 0.95 < accounted(memory) / rank["device"] < 1.05, memory


@pytest.mark.parametrize("changes", [
    dict(), dict(bf16=True), dict(optim="adamw_8bit"), dict(num_ranks=2, zero_stage=3),
    dict(num_ranks=2, zero_stage=3, bf16=True, **OFFLOAD),
], ids=lambda changes: " ".join(changes) or "plain")
def test_saving_takes_no_memory(short, wide, changes):
    """The states of at most one parameter at a time are there twice, beside the copies that the account names."""
    without = short(**changes)
    saving = short(save_strategy="steps", save_steps=1, **changes)
    for left, right in zip(saving["measured"], without["measured"]):
        for role in ("device", "host"):
            copied = sum(line[role] for line in saving["account"] if line["name"] == "Copy to save")
            assert left[role] <= right[role] + 256 * 704 * (4 + 4 + 4) + copied, (saving, without)  # two moments and the master


@pytest.fixture(scope="session")
def long_row_peak(place, known_run):
    """long_row_peak(tokens, num_ranks, **keys): the fullest rank's peak on the device, in a step of the demo's model
    on one row, and the run. The row is packed of documents of 1024 tokens: as large as one document, but attention
    takes little time."""
    sys.path.insert(0, str(ROOT / "examples"))
    from demo import MODEL

    shape = {key: MODEL[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                         "num_attention_heads", "num_key_value_heads")}
    model = made_once(place / "demo", lambda folder: write_model(folder, "qwen2", **shape))
    rows = made_once(place / "long_rows", lambda folder: write_dataset(folder, num_rows=64, shortest=1100, longest=1100))

    def peak(tokens, num_ranks=1, **keys):
        settings = settings_of(model, rows, "", cutoff_len=1024, max_steps=1, per_device_train_batch_size=tokens // 1024,
                               gradient_accumulation_steps=1, **keys)
        run = known_run(settings, num_ranks, timeout=600, way=run_processes)
        memory = json.loads((run.output_dir / "memory.json").read_text())
        assert memory["facts"]["num_tokens"] == tokens
        return max(rank["device"] for rank in memory["measured"]), run

    return peak


K = 1024
OFF = dict(disable_gradient_checkpointing=True)
ON = dict(offload_activations=True, tiled_mlp=64)  # the fused head is always on
SHARED = dict(num_ranks=2, sequence_parallel_size=2, sequence_parallel_mode="ulysses")
DIVIDED = dict(zero_stage=3, **OFFLOAD)


ALONE = ON | dict(offload_optimizer=True)


def same_step(left, right):
    """As far as one pass in other shapes is the same. A loss is summed in fp64, so that it is apart by what a pass rounds
    (TOLERANCE). A gradient is also a sum over the row's 32768 = 2^15 tokens, in fp32 and in another order: at random the
    roundings of 2^15 terms make sqrt(2^15) = 181 of the sum's own, which are 181 * 2^-24 = 1.1e-5 beside the pass's."""
    same_run(left, right, tolerance=TOLERANCE, keys=["loss"])
    same_run(left, right, tolerance=TOLERANCE + math.sqrt(32 * K) * ROUNDING, keys=["grad_norm"])


@pytest.mark.long
def test_a_row_of_32k_takes_a_fifth(long_row_peak):
    off, plain = long_row_peak(32 * K, **OFF)
    on, saving = long_row_peak(32 * K, **ALONE)
    assert on <= 0.2 * off
    same_step(saving, plain)


@pytest.mark.long
def test_a_shared_row_of_32k_takes_a_fifth(long_row_peak):
    off, plain = long_row_peak(32 * K, **SHARED, **OFF)
    on, saving = long_row_peak(32 * K, **SHARED, **ON, **DIVIDED)
    assert on <= 0.2 * off
    same_step(saving, plain)
    # Of three heads a rank waves cost more than they save; beside one process with nothing on it is a fifth all the same.
    waves, saving = long_row_peak(32 * K, **SHARED, **ON, **DIVIDED, sequence_parallel_head_waves=3)
    assert waves <= 0.2 * long_row_peak(32 * K, **OFF)[0]
    same_step(saving, plain)


@pytest.mark.long
@pytest.mark.parametrize("keys, tolerance", [
    (ALONE, 0.01),
    # A group's thread lets go of what was sent a moment after telling.
    (SHARED | ON | DIVIDED, 0.05),
], ids=["one process", "two processes"])
def test_memory_grows_in_a_straight_line(keys, tolerance, long_row_peak):
    least, middle, most = (long_row_peak(tokens * K, **keys)[0] for tokens in (8, 16, 32))
    slope = (most - least) / (24 * K)
    assert abs(least + slope * 8 * K - middle) < tolerance * middle
    # A few kilobytes a token and layer: 3 layers.
    assert slope / 3 < 2 * K
