"""A run in this process, and its result."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from longspan import _native
from longspan._meeting import port_of_start
from longspan.callbacks import Listener

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """The result of a run.

    end: "done"; "stopped": told to stop, with a checkpoint saved; "interrupted": the current step was abandoned.
    step, total_steps, epoch, num_tokens, seconds: including earlier starts of the run.
    loss: mean over the steps so far. saved_in: folder of the trained model; empty: not saved.
    """

    end: str
    step: int
    total_steps: int
    epoch: float
    num_tokens: int
    seconds: float
    loss: float
    saved_in: str


def train_here(
    file: str,
    words: list[str],
    take: Callable[[dict[str, Any]], None],
    signals: Sequence[signal.Signals] = STOP_SIGNALS,
) -> TrainResult:
    """Trains in this process. `take`: gets each event."""
    port = port_of_start()
    control = _native.call("control_new")

    def stop(why: str) -> None:
        _native.call("control_stop", control, why)

    listener = Listener(take, stop)
    texts: list[str] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            texts.append(_native.call("run_train", control, file, words, listener.address, port))
        except BaseException as error:
            errors.append(error)

    # The main thread of Python handles signals between its own instructions, so the run has a thread of its own.
    thread = threading.Thread(target=work, name="longspan.train", daemon=True)
    with handled(signals, stop, lambda: _native.call("control_abandon", control)) as received:
        thread.start()
        while thread.is_alive():
            thread.join(0.5)
    return outcome(listener, errors, received, texts)


def outcome(
    listener: Listener, errors: list[BaseException], received: list[int], texts: list[str]
) -> TrainResult:
    """Returns the result, or raises: the exception of a callback, KeyboardInterrupt, the error of the run."""
    if listener.error is not None:
        raise listener.error
    if signal.SIGINT in received:
        raise KeyboardInterrupt from (errors[0] if errors else None)
    if errors:
        raise errors[0]
    return TrainResult(**json.loads(texts[0]))


@contextlib.contextmanager
def handled(
    signals: Sequence[signal.Signals], stop: Callable[[str], None], abandon: Callable[[], None]
) -> Iterator[list[int]]:
    """Handles these signals, unless the process ignores them. Yields the list of the signals received."""
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in received:
            abandon()
        elif number == signal.SIGINT and os.environ.get("RANK", "0") == "0":
            text = "Interrupted: the step is finished and saved. Ctrl-C again abandons the step."
            print(text, file=sys.stderr, flush=True)
        received.append(number)
        stop(signal.Signals(number).name)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
