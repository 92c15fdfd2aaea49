"""Starts the processes of a run on this machine, and waits for them."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Callable

from longspan import _native
from longspan._run import STOP_SIGNALS, TrainResult, handled, outcome
from longspan.callbacks import Listener
from longspan.errors import CommunicationError, LongspanError, UsageError

SECONDS_AFTER_A_FAILURE = 60  # in which the other ranks find the lost rank and say so


def train_on_workers(file: str, words: list[str], size: int, take: Callable[[dict[str, Any]], None]) -> TrainResult:
    """Trains on `size` processes (longspan._worker). `take`: gets each event of rank 0, in this process."""
    for name in ("NNODES", "PET_NNODES"):
        if (os.environ.get(name) or "1") not in ("1", "1:1"):
            raise UsageError(
                f"{name}={os.environ[name]}: train() starts processes on one machine; start the program by torchrun"
            )
    with tempfile.TemporaryDirectory(prefix="longspan-") as folder:
        (pathlib.Path(folder) / "job.json").write_text(json.dumps([file, words]))
        reading, writing = os.pipe()
        workers: list[subprocess.Popen[bytes]] = []

        def stop(why: str) -> None:
            _signal(workers, signal.SIGTERM)

        listener = Listener(take, stop)
        try:
            # Workers ignore Ctrl-C, which a terminal sends to them too.
            with handled(STOP_SIGNALS, stop, lambda: _signal(workers, signal.SIGKILL)) as received:
                command = [sys.executable, "-m", "longspan._worker", folder]
                for environment in _environments(size):
                    is_main = environment["RANK"] == "0"
                    workers.append(subprocess.Popen(command + [str(writing)] * is_main, env=environment,
                                                    pass_fds=[writing] * is_main))
                os.close(writing)
                with os.fdopen(reading, "rb") as events:
                    for line in events:
                        listener.receive(json.loads(line))
                statuses = _wait(workers)
        finally:
            _signal(workers, signal.SIGKILL)
        errors = _errors(pathlib.Path(folder), statuses)
        result = pathlib.Path(folder) / "result.json"
        return outcome(listener, errors, received, [result.read_text()] if not errors else [])


def _environments(size: int) -> list[dict[str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    package = str(pathlib.Path(__file__).parent.parent)
    common = dict(os.environ)
    common.setdefault("OMP_NUM_THREADS", str(max(1, _native.call("num_cores") // size)))
    common.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # c10d prints a stack trace for every lost connection
    common.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                  PYTHONPATH=os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])]))
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def _signal(workers: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(number)


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    failed_at = None
    while any(worker.poll() is None for worker in workers):
        time.sleep(0.05)
        if failed_at is None and any(worker.poll() for worker in workers):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > SECONDS_AFTER_A_FAILURE:
            _signal(workers, signal.SIGKILL)
    return [worker.wait() for worker in workers]


def _errors(folder: pathlib.Path, statuses: Sequence[int]) -> list[BaseException]:
    """Returns the errors of the ranks, those that are causes first."""
    errors: list[BaseException] = []
    for rank, status in enumerate(statuses):
        file = folder / f"error{rank}.json"
        if file.exists():
            name, text = json.loads(file.read_text())
            kinds = {"UsageError": UsageError, "CommunicationError": CommunicationError}
            errors.append(kinds[name](text) if name in kinds else LongspanError(f"rank {rank}: {name}: {text}"))
        elif status != 0:
            errors.append(LongspanError(f"rank {rank} ended with status {status}; its output says more"))
    return sorted(errors, key=lambda error: isinstance(error, CommunicationError))
