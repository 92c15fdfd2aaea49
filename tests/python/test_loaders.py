"""Loaders of longspan.parallelize: which rows each group of ranks gets."""

import torch
from forks import run_forks
from hf_models import small_model, uneven_batches


def shuffled(rank, seed):
    """Loaders of several kinds give the same rows to the ranks of a group, and all rows once."""
    import longspan

    data = [dict(input_ids=torch.full((6,), 1 + number), labels=torch.full((6,), 1 + number)) for number in range(8)]
    kinds = [torch.utils.data.DataLoader(data, batch_size=1, shuffle=True),
             torch.utils.data.DataLoader(data, batch_size=1, num_workers=1, shuffle=True),
             torch.utils.data.DataLoader(data, batch_size=1, sampler=torch.utils.data.DistributedSampler(data))]
    found = []
    for loader in kinds:
        _, loader = longspan.parallelize(small_model("llama"), loader, sequence_parallel_size=2)
        loader.set_epoch(1)
        torch.manual_seed(seed + rank)
        found.append([batch["input_ids"][0, 0].item() for batch in loader])
        assert len(found[-1]) == len(loader) == 4
    return found


def test_loaders():
    found = run_forks(4, shuffled, 11)
    for kind in range(3):
        rows = [one[kind] for one in found]
        assert rows[0] == rows[1] and rows[2] == rows[3] and sorted(rows[0] + rows[2]) == list(range(1, 9))
        assert rows[0] + rows[2] != list(range(1, 9))


class Drawn(torch.utils.data.DistributedSampler):
    """A sampler with a constructor of its own."""

    def __init__(self, data):
        super().__init__(data, num_replicas=1, rank=0, seed=3)
        self.kept = 7


def test_sampler_of_groups():
    """A sampler that deals to groups keeps its epoch."""
    from longspan._loader import _deal

    sampler = Drawn(range(10))
    sampler.set_epoch(5)
    _deal(sampler, 1, 4)
    assert (sampler.epoch, sampler.kept, sampler.num_samples, sampler.total_size) == (5, 7, 3, 12)
    other = torch.utils.data.DistributedSampler(range(10), 4, 1, seed=3)
    other.set_epoch(5)
    assert list(sampler) == list(other) and len(sampler) == len(other)


def test_filler():
    """A group without a batch gets no labels, and token_keys of padding."""
    import longspan
    from longspan._loader import ParallelLoader

    batch = uneven_batches(1)[0] | dict(weights=torch.ones(2, 41))
    _, loader = longspan.parallelize(small_model("llama"), [batch], sequence_parallel_size=1, token_keys=dict(weights=0.5))
    (filler,) = ParallelLoader([batch], loader.cutter, 1, 2, 60)
    assert (filler["weights"] == 0.5).all() and (filler["shift_labels"] == -100).all() and (filler["labels"] == -100).all()
