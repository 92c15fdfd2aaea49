"""Starts the ranks of a run: processes that find each other by RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. On one machine, or each in a network namespace of its own."""

import os
import resource
import socket
import subprocess
import time
from pathlib import Path

from speed.watch import busy_seconds


class Local:
    """All ranks on this machine, over loopback."""

    address = "127.0.0.1"
    nodes = 1

    def prefix(self, rank: int) -> list[str]:
        return []

    def variables(self, rank: int) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": "lo"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_ranks(command: list[str], num_ranks: int, threads: int, log: Path, place=Local(),
              limit_seconds: float = 3600.0) -> float:
    """Runs `command` on every rank to its end. Returns the cores that other processes took meanwhile,
    on average. Raises SystemExit with a log's tail when a rank fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    shared = {
        "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": place.address, "MASTER_PORT": str(port),
        "LOCAL_WORLD_SIZE": str(num_ranks // place.nodes), "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1",
    }
    began, busy, children, own = time.time(), busy_seconds(), _children_seconds(), os.times()
    processes, logs = [], [log.with_suffix(f".{rank}.log") for rank in range(num_ranks)]
    try:
        for rank in range(num_ranks):
            here = {"RANK": str(rank), "LOCAL_RANK": str(rank % (num_ranks // place.nodes))}
            with open(logs[rank], "wb") as output:
                processes.append(subprocess.Popen(
                    place.prefix(rank) + command, stdout=output, stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=os.environ | shared | here | place.variables(rank)))
        while any(process.poll() is None for process in processes):
            failed = [p.returncode for p in processes if p.poll()]
            if failed or time.time() - began > limit_seconds:
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode > 0:
            tail = "\n".join(logs[rank].read_text(errors="replace").splitlines()[-25:])
            raise SystemExit(f"{' '.join(command)}\nfailed with status {process.returncode} on rank "
                             f"{rank}:\n{tail}")
    if any(process.returncode != 0 for process in processes):
        raise SystemExit(f"{' '.join(command)}\nran longer than {limit_seconds:.0f} s or was ended; "
                         f"see {log.with_suffix('.*.log')}")
    seconds = time.time() - began
    now = os.times()
    ours = _children_seconds() - children + now.user - own.user + now.system - own.system
    return max(0.0, busy_seconds() - busy - ours) / seconds
