"""Every model family on simulated GPUs: a few runs, all of them by `make test-device`."""

import pytest
from device import DEVICE
from families import name_of
from families_on_gpus import OnGpus, all_runs, some_runs


@pytest.mark.parametrize("run", all_runs() if DEVICE == "simulated" else some_runs(), ids=name_of)
def test_same_numbers(run, place, known_run, tmp_path):
    OnGpus(place, known_run).check(run, tmp_path / "run")
