"""Step times from inside a peer: a callback for transformers' Trainer, which LLaMA-Factory's
trainer is too. Appends one JSON line for each event to a file. Runs in the peer's process."""

import json
import time


def step_clock(path: str):
    from transformers import TrainerCallback

    class StepClock(TrainerCallback):
        def _write(self, **event):
            with open(path, "a") as file:
                file.write(json.dumps(event) + "\n")

        def on_train_begin(self, args, state, control, **kwargs):
            self._write(event="begin", time=time.time())

        def on_step_end(self, args, state, control, **kwargs):
            self._write(event="step", time=time.time(), step=state.global_step)

        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "loss" in logs:
                numbers = {key: float(value) for key, value in logs.items()
                           if hasattr(value, "__float__")}
                self._write(event="log", step=state.global_step, logged=numbers)

    return StepClock
