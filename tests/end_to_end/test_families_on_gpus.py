"""Every model family on GPUs: a few runs on simulated ones, all of them by `make test-device` and on real ones."""

import pytest
from device import DEVICE
from families import name_of
from families_on_gpus import OnGpus, all_runs, some_runs


@pytest.mark.parametrize("run", some_runs() if DEVICE == "cpu" else all_runs(), ids=name_of)
def test_same_numbers(run, place, known_run, tmp_path):
    OnGpus(place, known_run).check(run, tmp_path / "run")
