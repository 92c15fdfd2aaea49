"""Events of runs and sessions, and the callbacks that get them."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from longspan.errors import LongspanError


class StopTraining(LongspanError):
    """A callback raises this exception to end the run after the current step. The run saves a checkpoint and
    returns."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a run. loss: of the last step; None: no step yet, or a skipped step. num_tokens: of all ranks."""

    step: int
    total_steps: int
    epoch: float
    num_tokens: int
    elapsed_seconds: float
    tokens_per_second: float
    loss: Optional[float]


class Callback:
    """Receives the events of a run, on rank 0 only. Subclasses override methods; each method does nothing by default.

    A method that raises StopTraining ends the run after its step. Another exception does the same, and train() raises
    the exception once the run has saved its checkpoint.
    """

    def on_message(self, text: str) -> None:
        """A line or a table for the user."""

    def on_step(self, progress: Progress) -> None:
        """A completed step, or the start of the steps."""

    def on_log(self, entry: dict[str, float]) -> None:
        """An entry of trainer_log.jsonl: loss, grad_norm, learning_rate, epoch and others; at the end train_loss."""

    def on_evaluation(self, entry: dict[str, float]) -> None:
        """The result of an evaluation: eval_loss and others."""

    def on_checkpoint(self, folder: str, step: int) -> None:
        """A complete checkpoint in `folder` after `step` steps."""

    def on_save(self, folder: str) -> None:
        """The trained model, complete in `folder`."""

    def on_memory(self, peaks: list[dict[str, int]]) -> None:
        """Measured peaks of each rank in bytes: device, host, process."""

    def on_steps_ended(self) -> None:
        """The end of the steps, with or without the last step."""


def dispatch(callbacks: Sequence[Callback], event: dict[str, Any]) -> None:
    """Calls the method of each callback for an event of the library."""
    kind = event.pop("event")
    for callback in callbacks:
        if kind == "message":
            callback.on_message(event["text"])
        elif kind == "step":
            callback.on_step(Progress(**event))
        elif kind == "log":
            callback.on_log(dict(event["entry"]))
        elif kind == "evaluation":
            callback.on_evaluation(dict(event["entry"]))
        elif kind == "checkpoint":
            callback.on_checkpoint(event["folder"], event["step"])
        elif kind == "save":
            callback.on_save(event["folder"])
        elif kind == "memory":
            callback.on_memory(event["peaks"])
        elif kind == "steps_ended":
            callback.on_steps_ended()


class Listener:
    """Passes events to `take`. address: the function that the library calls. error: the exception of `take`, if any;
    later events are dropped, and `stop` has been called with the reason."""

    def __init__(self, take: Callable[[dict[str, Any]], None], stop: Callable[[str], None]) -> None:
        self._take, self._stop = take, stop
        self.error: Optional[BaseException] = None
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda text: self.receive(json.loads(text)))
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def receive(self, event: dict[str, Any]) -> None:
        if self.error is not None:
            return
        try:
            self._take(event)
        except StopTraining:
            self._stop("a callback has raised StopTraining")
        except BaseException as error:
            self.error = error
            self._stop(f"a callback has raised {type(error).__name__}")


class ProgressBar(Callback):
    """Prints messages and log entries, and shows the progress: by tqdm if it is installed, otherwise as lines."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self, shows_steps: bool = True) -> None:
        self._shows_steps = shows_steps
        self._bar: Any = None
        self._last_line = 0.0

    def on_message(self, text: str) -> None:
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.write(text)

    def on_log(self, entry: dict[str, float]) -> None:
        self.on_message(str(entry))

    on_evaluation = on_log

    def on_checkpoint(self, folder: str, step: int) -> None:
        self.on_message(f"Saved {folder}")

    def on_step(self, progress: Progress) -> None:
        if not self._shows_steps:
            return
        if self._bar is None:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return self._print(progress)
            self._bar = tqdm(total=progress.total_steps, initial=progress.step, file=sys.stderr)
        if progress.loss is not None:
            speed = f"{progress.tokens_per_second:.0f}/s"
            self._bar.set_postfix(loss=f"{progress.loss:.4f}", tokens=speed, refresh=False)
        self._bar.update(progress.step - self._bar.n)

    def on_steps_ended(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _print(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last_line < self.SECONDS_BETWEEN_LINES and progress.step < progress.total_steps:
            return
        self._last_line = now
        loss = "" if progress.loss is None else f" | loss {progress.loss:.4f}"
        self.on_message(f"{progress.step}/{progress.total_steps}{loss} | {progress.tokens_per_second:.0f} tokens/s")
