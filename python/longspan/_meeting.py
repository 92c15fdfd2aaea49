"""How the ranks of a run or session find each other."""

from __future__ import annotations

import socket
from typing import Any

import torch.distributed as dist

from longspan import _native
from longspan.errors import CommunicationError, UsageError

_store: Any = None  # lasts as long as the process
_num_starts = 0


def port_of_start() -> int:
    """Returns the port at which the ranks of the next run or session meet; 0: as the environment says.

    A launcher's store serves any number of starts. Without such a store, rank 0 serves a store for each start, and a
    rank that is ahead must not meet in the store of the start before. So each start has a port of its own, which rank 0
    chooses.
    Raises UsageError if torch.distributed has ranks that the environment does not name, and
    CommunicationError.
    """
    rank, size, address, port, launcher_has_store = _native.call("rendezvous")
    initialized = dist.is_available() and dist.is_initialized()
    if initialized and dist.get_world_size() != size:
        raise UsageError(
            f"torch.distributed has {dist.get_world_size()} ranks, and the environment of this process names {size}: "
            "start the ranks by torchrun, mpirun or srun, which set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    if size == 1 or launcher_has_store:
        return 0
    global _store, _num_starts
    try:
        if _store is None and initialized:
            _store = dist.distributed_c10d._get_default_store()
        elif _store is None:
            _store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                address, port, is_master=rank == 0, wait_for_workers=False, multi_tenant=True
            )
        key = f"longspan/port{_num_starts}"
        _num_starts += 1
        if rank == 0:
            with socket.socket() as probe:
                probe.bind(("", 0))
                _store.set(key, str(probe.getsockname()[1]))
        return int(_store.get(key))
    except (RuntimeError, OSError) as error:
        raise CommunicationError(f"rank {rank} of {size} does not find rank 0 at {address}:{port}: {error}") from None
