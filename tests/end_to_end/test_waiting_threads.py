"""OpenMP's threads sleep soon when they have nothing to do, unless the user says otherwise."""

import os
import re
import subprocess

import pytest
from conftest import PROGRAM, Running
from warm_start import COLD_START

VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def in_effect(text):
    """What each process's runtime has read, as it says itself."""
    return (re.findall(r"GOMP_SPINCOUNT = '(\d+)'", text), re.findall(r"OMP_WAIT_POLICY = '(\w+)'", text))


@pytest.fixture
def environment():
    """As it says while it is loaded: by a process of its own."""
    others = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return others | {"OMP_DISPLAY_ENV": "VERBOSE", COLD_START: "1"}


def said_by(words, environment):
    return subprocess.run(words, env=environment, capture_output=True, text=True).stderr


@pytest.mark.parametrize("users, counts, policy", [
    ({}, "10000", "PASSIVE"),
    ({"GOMP_SPINCOUNT": "7"}, "7", "PASSIVE"),  # the runtime's own default policy
    ({"OMP_WAIT_POLICY": "active"}, "30000000000", "ACTIVE"),
])
def test_one_process(users, counts, policy, environment):
    text = said_by([PROGRAM, "train", "no-such.yaml"], environment | users)
    assert "no-such.yaml" in text
    spins, policies = in_effect(text)
    assert spins[-1] == counts and policies[-1] == policy, text


def test_the_users_block_time_is_kept(environment):
    """Of Intel's and LLVM's runtime; GNU's does not know it and stays as it is."""
    before = said_by([PROGRAM, "version"], environment)
    assert in_effect(said_by([PROGRAM, "train", "no-such.yaml"], environment | dict(KMP_BLOCKTIME="1"))) == in_effect(before)


def test_started_by_a_loader(environment):
    """As `ld.so longspan train`: /proc/self/exe is the loader then, which cannot be started with our arguments."""
    loader = re.search(rb"/[^\0]*/ld[^\0/]*\.so[^\0]*", PROGRAM.read_bytes()[:8192]).group().decode()
    text = said_by([loader, PROGRAM, "train", "no-such.yaml"], environment)
    assert "no-such.yaml" in text, text
    assert len(in_effect(text)[0]) == 1, text


def test_commands_that_compute_nothing_start_once(environment):
    assert len(in_effect(said_by([PROGRAM, "version"], environment))[0]) == 1


@pytest.mark.parametrize("launcher", ["longspan", "torchrun"])
def test_workers(launcher, environment, models, data, tmp_path, monkeypatch):
    from conftest import settings_of
    from faults import launched_by_torchrun

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
    settings = settings_of(models["llama"], data, tmp_path / "out", max_steps=1)
    running = launched_by_torchrun(settings, 2) if launcher == "torchrun" else Running(settings | dict(nproc_per_node=2))
    run = running.wait()
    assert run.status == 0, run.text
    # Each worker is the last to say it.
    spins, _ = in_effect(run.text)
    assert spins[-2:] == ["10000", "10000"], spins
