"""longspan.parallelize: plain loops on several ranks beside transformers alone on one."""

import pytest
import torch
from hf_models import packed_batches, small_model, train, uneven_batches
from forks import run_forks

STEPS = 10


def alone(family, batches, options):
    return train(small_model(family, **options), batches, options.get("accumulation", 1))


def shared(rank, family, batches, modes, options):
    import torch.distributed as dist

    import longspan

    found = {}
    for mode in modes:
        model, loader = longspan.parallelize(small_model(family, **options), batches, mode=mode,
                                             sequence_parallel_size=dist.get_world_size())
        found[mode] = train(model, loader)
    return found


def close(found, expected):
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours[0] == pytest.approx(theirs[0], abs=1e-5) and ours[1] == pytest.approx(theirs[1], abs=1e-4)
    assert found[1] == pytest.approx(expected[1], abs=1e-5)


@pytest.mark.parametrize("family, size, modes", [
    ("llama", 1, ["auto"]),
    ("llama", 2, ["ulysses", "zigzag-ring"]),
    ("qwen2", 3, ["auto", "striped-ring", "balanced-ulysses"]),
])
def test_plain_loop(family, size, modes):
    for batches in (uneven_batches(STEPS), packed_batches(STEPS)):
        expected = alone(family, batches, {})
        for found in run_forks(size, shared, family, batches, modes, {}):
            for mode in modes:
                close(found[mode], expected)


def grouped(rank, batches, accumulation):
    """Two groups: each takes every second batch."""
    import longspan

    model, loader = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2)
    return [batch["labels"].shape for batch in loader], train(model, loader, accumulation)[0]


def test_groups():
    """Two groups of two ranks: a step has the rows of two batches. The last batch has no partner."""
    batches = uneven_batches(5, rows=1)
    pairs = [{key: torch.cat([pad[key] for pad in batches[i:i + 2]]) for key in batches[0]} for i in (0, 2, 4)]
    expected = alone("llama", pairs, {})[0]
    for shapes, found in run_forks(4, grouped, batches, 1):
        assert len(shapes) == 3
        close((found, []), (expected, []))


def accumulated(rank, batches):
    import longspan

    model, loader = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2)
    return train(model, loader, accumulation=2)


def test_accumulation():
    batches = uneven_batches(6)
    expected = train(small_model("llama"), batches, accumulation=2)
    for found in run_forks(2, accumulated, batches):
        close(found, expected)


def shuffled(rank, seed):
    """Loaders of several kinds give the same rows to the ranks of a group, and all rows once."""
    import longspan

    torch.manual_seed(seed + rank)
    data = [dict(input_ids=torch.full((6,), 1 + number), labels=torch.full((6,), 1 + number)) for number in range(8)]
    kinds = [torch.utils.data.DataLoader(data, batch_size=1, shuffle=True),
             torch.utils.data.DataLoader(data, batch_size=1, num_workers=1, shuffle=True),
             torch.utils.data.DataLoader(data, batch_size=1, sampler=torch.utils.data.DistributedSampler(data))]
    found = []
    for loader in kinds:
        _, loader = longspan.parallelize(small_model("llama"), loader, sequence_parallel_size=2)
        loader.set_epoch(1)
        found.append([batch["input_ids"][0, 0].item() for batch in loader])
        assert len(found[-1]) == len(loader) == 4
    return found


def test_loaders():
    found = run_forks(4, shuffled, 11)
    for kind in range(3):
        rows = [one[kind] for one in found]
        assert rows[0] == rows[1] and rows[2] == rows[3] and sorted(rows[0] + rows[2]) == list(range(1, 9))
        assert rows[0] + rows[2] != list(range(1, 9))
