"""Loaders whose batches are cut for the ranks that share their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from longspan._loss import of_first_rank, world_size
from longspan._rows import IGNORED, RowCutter
from longspan.errors import UsageError


class ParallelLoader:
    """Batches of another loader, cut.

    All ranks of a group read the same batches. Of several groups, group d reads batches d, d + D, ... of a loader; a loader
    with a DistributedSampler reads its own part for each group. If the batches do not suffice for all groups, the others
    get a batch without labels, whose token_keys have the value of padding, so that all groups take as many steps.
    """

    def __init__(self, loader: Iterable[Any], cutter: RowCutter, data_rank: int, data_size: int,
                 timeout: int) -> None:
        if getattr(loader, "_is_accelerate_prepared", False):
            raise UsageError("the loader was prepared by accelerate, which deals batches to all ranks: call parallelize() "
                             "first, and do not pass its loader to accelerator.prepare()")
        self.loader, self.cutter = loader, cutter
        self._rank, self._size, self._timeout = data_rank, data_size, timeout
        sampler = getattr(loader, "sampler", None)
        if isinstance(sampler, torch.utils.data.DistributedSampler):
            _deal(sampler, data_rank, data_size)
            self._rank, self._size = 0, 1

    def __len__(self) -> int:
        return -(-len(self.loader) // self._size)  # pyright: ignore[reportArgumentType]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the sampler or data set, where these have epochs."""
        parts: list[Any] = [getattr(self.loader, "sampler", None), getattr(self.loader, "dataset", None), self.loader]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
                return

    def __iter__(self) -> Iterator[dict[str, Any]]:
        same_random_numbers(self._timeout)
        batches = iter(self.loader)
        while True:
            own = last = None
            for d in range(self._size):
                batch = next(batches, None)
                if batch is None:
                    break
                last = batch
                if d == self._rank:
                    own = batch
            if last is None:
                return
            yield self.cutter(own if own is not None else _without_labels(last, dict(self.cutter.token_keys)))


def _without_labels(batch: Any, token_keys: dict[str, float]) -> Any:
    """Returns the batch with no label and with the token_keys of padding, so that it adds nothing to losses and gradients."""
    if not isinstance(batch, Mapping):  # the cutter refuses it
        return batch
    padding = token_keys | {"labels": IGNORED, "shift_labels": IGNORED}
    return {name: torch.full_like(value, padding[name]) if name in padding and isinstance(value, torch.Tensor) else value
            for name, value in batch.items()}


def same_random_numbers(timeout: int) -> None:
    """Gives all ranks rank 0's state of torch's random numbers, so that their samplers shuffle alike. Collective."""
    if world_size() == 1:
        return
    torch.set_rng_state(of_first_rank(torch.get_rng_state(), None, timeout))


def _deal(sampler: Any, data_rank: int, data_size: int) -> None:
    """Lets a DistributedSampler deal to groups of ranks instead of ranks."""
    if sampler.num_replicas == data_size and sampler.rank == data_rank:
        return
    if sampler.num_replicas != world_size():
        raise UsageError(f"the loader's DistributedSampler deals to {sampler.num_replicas} ranks, and there are "
                         f"{world_size()} ranks in {data_size} groups: leave num_replicas and rank out")
    dealt = torch.utils.data.DistributedSampler(sampler.dataset, data_size, data_rank, drop_last=sampler.drop_last)
    for name in ("num_replicas", "rank", "num_samples", "total_size"):  # the others, such as the epoch, stay
        setattr(sampler, name, getattr(dealt, name))
