"""Whole runs: as `longspan train`, from Python."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from longspan import _native
from longspan._given_config import Config, Overrides, given_config
from longspan._launch import train_on_workers
from longspan._run import TrainResult, train_here
from longspan.callbacks import Callback, ProgressBar, dispatch


def train(
    config: Config, *, overrides: Overrides = (), callbacks: Sequence[Callback] = (), progress: bool = True
) -> TrainResult:
    """Trains by a configuration: a dict, or the path of a YAML or JSON file, with the keys of `longspan train`.

    overrides: a dict, or words `key=value`, which replace keys of the configuration.
    callbacks: get the events of the run (see Callback), on rank 0.
    progress: prints messages and log entries, and shows the steps.

    The run is in this process if a launcher (torchrun, mpirun, srun) has started it, or if the configuration asks for
    one process. Otherwise (nproc_per_node, or several GPUs) train() starts the processes of this machine and waits for
    them; callbacks run in the calling process.

    Ctrl-C, SIGTERM and SIGUSR1 end the run after its step, with a checkpoint; the same call goes on
    from there. After Ctrl-C train() then raises KeyboardInterrupt; a second Ctrl-C abandons the step. (Only the main
    thread of Python receives signals.)
    Raises UsageError on every rank for a mistake of the user, and CommunicationError if another rank has ended.
    """
    with given_config(config, overrides) as (file, words):
        num_processes, launched, disable_tqdm = _native.call("run_settings", file, words)
        listening = list(callbacks) + [ProgressBar(not disable_tqdm)] * progress
        take = functools.partial(dispatch, listening)
        if launched or num_processes == 1:
            return train_here(file, words, take)
        return train_on_workers(file, words, num_processes, take)
