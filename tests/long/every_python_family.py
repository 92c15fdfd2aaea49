"""longspan.parallelize_trainer with every checked model type and every method, on 1, 2 and 3 ranks: the numbers of ten steps are
those of transformers' Trainer alone, or parallelize refuses the method. TRL's trainers, ten steps too. `make test-families`; what `make test` has of it is
tests/python/test_hf_trainer.py and test_parallelize.py."""

import functools
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

import hf_models  # noqa: E402
import hf_trainer  # noqa: E402
import test_hf_pictures  # noqa: E402
import test_trl  # noqa: E402
from forks import run_forks  # noqa: E402

import longspan  # noqa: E402

MODES = ["auto", "ulysses", "dummy-head-ulysses", "xtuner-ulysses", "async-ulysses", "balanced-ulysses", "ring",
         "striped-ring", "zigzag-ring", "allgather", "llama3", "usp", "loongtrain"]
# Query heads and kv heads.
HEADS = {"llama": (6, 2), "qwen2": (7, 7), "qwen3": (4, 2), "gemma3_text": (5, 1), "gpt_oss": (6, 3), "qwen3_moe": (8, 4),
         "qwen3_5_text": (6, 2), "qwen3_5_moe_text": (5, 5), "qwen3_next": (4, 2), "gemma2": (6, 2), "mistral": (7, 1),
         "phi3": (3, 3), "qwen2_vl": (4, 4), "qwen2_5_vl": (5, 5), "qwen3_vl": (6, 2),
         "qwen3_vl_moe": (3, 1), "qwen3_5": (7, 1), "qwen3_5_moe": (4, 2)}
HEAD_DIM = 8
PICTURES = set(test_hf_pictures.KINDS)
# transformers ignores the documents of a packed row: rows of their own are the reference.
IGNORE_DOCUMENTS = {"gpt_oss", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}


def fits(mode, num_heads, size):
    """Whether docs/methods.md lets `size` ranks share so many heads. usp and loongtrain choose degrees that fit."""
    if mode in ("ulysses", "async-ulysses"):
        return num_heads % size == 0
    if mode == "xtuner-ulysses":
        return HEAD_DIM % (size // math.gcd(num_heads, size)) == 0
    return True


def model_of(family):
    num_heads, num_kv_heads = HEADS[family]
    options = dict(num_attention_heads=num_heads, num_key_value_heads=num_kv_heads, hidden_size=num_heads * HEAD_DIM)
    if family in PICTURES:
        return test_hf_pictures.small_model(family, **options)
    return hf_models.small_model(family, **options)


def is_packed(family, mode, size):
    return family not in PICTURES and (MODES.index(mode) + size) % 2 == 1


def trainer_of(folder, family, packed, unpacked=False, **arguments):
    from transformers import DataCollatorWithFlattening

    flat = DataCollatorWithFlattening()
    if family in PICTURES:
        return test_hf_pictures.trainer_of(folder, model_of(family), **arguments)
    collator = (lambda batch: hf_models.unpacked(flat(batch))) if unpacked else flat if packed else hf_trainer.padded
    return hf_trainer.trainer_of(folder, model_of(family), collator, **arguments)


def alone(rank, folder, family):
    """By whether rows are packed."""
    return {packed: hf_trainer.logs_of(trainer_of(folder, family, packed, packed and family in IGNORE_DOCUMENTS))
            for packed in (False, True) if not (packed and family in PICTURES)}


@functools.cache
def expected_of(folder, family):
    return run_forks(1, alone, folder, family)[0]


def modes_of(size):
    """The methods that are trained. One rank attends by itself whatever the method: packed and padded rows are enough."""
    return MODES if size > 1 else MODES[:2]


def shared(rank, folder, family, size):
    """By mode: the numbers, or the text of the UsageError."""
    found = {}
    for mode in modes_of(size):
        # With checkpointing Trainer's DDP expects a gradient of each parameter, and a row without pictures has none in the tower.
        checkpointing = size == 2 and family not in PICTURES
        trainer = trainer_of(folder, family, is_packed(family, mode, size), gradient_checkpointing=checkpointing)
        try:
            longspan.parallelize_trainer(trainer, sequence_parallel_size=size, mode=mode)
        except longspan.UsageError as error:
            found[mode] = str(error)
        else:
            found[mode] = hf_trainer.logs_of(trainer)
    return found


def largest(found, expected):
    """Largest differences of losses, norms of gradients and losses of evaluations."""
    pairs = [list(zip(ours, theirs, strict=True)) for ours, theirs in zip(found, expected, strict=True)]
    return (max(abs(a[0] - b[0]) for a, b in pairs[0]), max(abs(a[1] - b[1]) for a, b in pairs[0]),
            max(abs(a - b) for a, b in pairs[1]))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("family", HEADS)
def test_same_numbers(family, size, tmp_path_factory):
    folder = str(tmp_path_factory.getbasetemp())
    expected = expected_of(folder, family)
    modes = modes_of(size)
    differences, refused = [], {mode for mode in modes if not fits(mode, HEADS[family][0], size)}
    for found in run_forks(size, shared, folder, family, size, timeout=900):
        assert {mode for mode, numbers in found.items() if isinstance(numbers, str)} == refused, found
        for mode in refused:
            assert f"cannot split {HEADS[family][0]} attention heads" in found[mode], found[mode]
        for mode in set(modes) - refused:
            of_mode = expected[is_packed(family, mode, size)]
            hf_trainer.close(found[mode], of_mode)
            differences.append(largest(found[mode], of_mode))
    print(f"{family}, {size} ranks: {len(modes) - len(refused)} modes, refused {sorted(refused)}; largest differences of loss, "
          "grad_norm, eval_loss: " + ", ".join(f"{max(values):.1e}" for values in zip(*differences)))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["SFT", "DPO", "GRPO"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_ten_steps_of_trl(tmp_path, family, kind, size):
    hf_models.small_model(family).save_pretrained(tmp_path / "model")
    options = dict(max_steps=10)
    expected = run_forks(1, test_trl.train, kind, tmp_path, 0, options, "auto")[0]
    for found in run_forks(size, test_trl.train, kind, tmp_path, size, options, "auto"):
        test_trl.close(found, expected)


def sharded(rank, folder, size, arguments):
    hf_trainer.let_cpus_shard()
    trainer = hf_trainer.trainer_of(f"{folder}/{size}", hf_models.small_model("llama"), **arguments)
    if size:
        longspan.parallelize_trainer(trainer, sequence_parallel_size=size)
    return hf_trainer.logs_of(trainer)


@pytest.mark.parametrize("ranks, size", [(2, 2), (4, 2)])
@pytest.mark.parametrize("by", hf_trainer.SHARDED)
def test_sharded(tmp_path, by, ranks, size):
    """Sharded parameters, also with two groups, beside DDP alone on as many ranks as there are groups."""
    expected = run_forks(ranks // size, sharded, tmp_path, 0, {})[0]
    for found in run_forks(ranks, sharded, tmp_path, size, hf_trainer.SHARDED[by]):
        hf_trainer.close(found, expected)


def saved(rank, folder, of_torch):
    engine = hf_trainer.SHARDED["zero3"]["deepspeed"]
    engine = engine | dict(zero_optimization=engine["zero_optimization"] | dict(memory_efficient_linear=not of_torch))
    trainer = hf_trainer.trainer_of(folder, hf_models.small_model("llama"), gradient_checkpointing=True, deepspeed=engine)
    longspan.parallelize_trainer(trainer, sequence_parallel_size=2, save_products=True)
    if of_torch:
        return hf_trainer.logs_of(trainer)
    with pytest.raises(longspan.UsageError, match="set memory_efficient_linear to false"):
        trainer.train()


def test_saved_products_of_zero3(tmp_path):
    """By torch's own linear alone: DeepSpeed's replaces the function in the process for good."""
    expected = run_forks(1, sharded, tmp_path, 0, {})[0]
    assert run_forks(2, saved, tmp_path, False) == [None, None]
    for found in run_forks(2, saved, tmp_path, True):
        hf_trainer.close(found, expected)


def sharded_trl(rank, kind, folder, size, options):
    hf_trainer.let_cpus_shard()
    return test_trl.train(rank, kind, folder, size, options, "auto")


@pytest.mark.parametrize("ranks, by, by_name", [(4, None, False), (2, "fsdp2", False), (2, "zero3", False), (2, "zero3", True)])
@pytest.mark.parametrize("kind", ["SFT", "DPO", "GRPO"])
def test_sharded_trl(tmp_path, kind, ranks, by, by_name):
    """TRL with two groups, with sharded parameters, and with a model that DeepSpeed shards as it is loaded."""
    hf_models.small_model("llama").save_pretrained(tmp_path / "model")
    expected = run_forks(ranks // 2, sharded_trl, kind, tmp_path, 0, {})[0]
    for found in run_forks(ranks, sharded_trl, kind, tmp_path, 2, hf_trainer.SHARDED.get(by, {}) | dict(by_name=by_name)):
        test_trl.close(found, expected)


def test_one_rank():
    """One rank takes no method."""
    for mode in MODES:
        assert longspan.share(longspan.Heads(7, 1, HEAD_DIM, HEAD_DIM), mode=mode).mode == "local"


def test_every_family_is_here():
    from longspan import _pictures
    from longspan._models import CHECKED_TYPES

    assert set(HEADS) == CHECKED_TYPES | _pictures.CHECKED_TYPES


def resumed(rank, folder, family, mode, packed, resume):
    trainer = trainer_of(f"{folder}/{mode}", family, packed, save_strategy="steps", save_steps=5)
    longspan.parallelize_trainer(trainer, sequence_parallel_size=2, mode=mode)
    return hf_trainer.logs_of(trainer, resume and f"{folder}/{mode}/checkpoint-5")


@pytest.mark.parametrize("family, mode, packed", [("gpt_oss", "zigzag-ring", True), ("qwen3_5_text", "balanced-ulysses", False)])
def test_resume(family, mode, packed, tmp_path, tmp_path_factory):
    expected = expected_of(str(tmp_path_factory.getbasetemp()), family)[packed]
    through = run_forks(2, resumed, str(tmp_path), family, mode, packed, False)
    again = run_forks(2, resumed, str(tmp_path), family, mode, packed, True)
    assert again == through
    for found in again:
        hf_trainer.close(found, expected)
