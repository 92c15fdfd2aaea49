"""The plan of a run and its memory account, before any tensor exists."""

from __future__ import annotations

import dataclasses
import json
from typing import Optional

from longspan import _native
from longspan._given_config import Config, Overrides, given_config


@dataclasses.dataclass(frozen=True)
class MemoryLine:
    """A part of the memory of one rank. device: for computation; host: offloaded. note: bytes per token, or the
    sharding."""

    name: str
    device_bytes: int
    host_bytes: int
    note: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the ranks of a run share the work, and the memory of one rank at the peak of a step.

    method: the method of sequence parallelism ("local": one rank a row); description: the method with its degrees;
        reason: why the method was chosen.
    row_tokens: tokens of the longest row, for which the memory is computed (per_device_train_batch_size x cutoff_len).
    library_bytes: device memory of the driver and of libraries, beside the tensors.
    bytes_per_token: device bytes that grow with the tokens of one rank.
    table: the memory as a table.
    warning: on the sharding; may be empty. notes: on keys that have no effect.
    """

    method: str
    description: str
    reason: str
    world_size: int
    data_parallel_size: int
    sequence_parallel_size: int
    shard_size: int
    expert_parallel_size: int
    device: str
    row_tokens: int
    memory: tuple[MemoryLine, ...]
    device_bytes: int
    host_bytes: int
    library_bytes: int
    bytes_per_token: float
    table: str
    warning: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(filter(None, [self.device, self.reason, self.table]))


def plan(config: Config, *, overrides: Overrides = (), world_size: Optional[int] = None) -> Plan:
    """Returns the plan of a configuration (a dict, or the path of a YAML or JSON file) without making a tensor.

    world_size: number of processes; None: of the launcher, else of the configuration, as in train().
    Raises UsageError for a mistake in the configuration, and for a number of processes that cannot share the work.
    """
    with given_config(config, overrides) as (file, words):
        values = json.loads(_native.call("run_plan", file, words, world_size or 0))
    values["memory"] = tuple(MemoryLine(**line) for line in values["memory"])
    values["notes"] = tuple(values["notes"])
    return Plan(**values)
