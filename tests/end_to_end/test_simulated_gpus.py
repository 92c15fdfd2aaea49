"""Runs on simulated GPUs: what the program does with devices, their streams and their memory is right (or it would end
with what is wrong), its results are the CPU's, and its host waits for them as seldom as is known."""

import json
import os
import shutil
import subprocess

import pytest
from conftest import BUILD, PROGRAM, Running, same_run, settings_of


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A copy of the program whose GPUs are simulated, and the environment in which it finds them."""
    folder = tmp_path_factory.mktemp("simulated")
    shutil.copy(PROGRAM, folder / "longspan")
    shutil.copy(BUILD / "simulated_gpus" / "liblongspan_cuda.so", folder)
    source = folder / "driver.c"
    source.write_text("int longspan_driver;")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    return folder / "longspan", {"LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


@pytest.fixture
def simulated(program, models, data, tmp_path):
    """simulated(num_ranks, **keys): the run, and what each of its ranks has counted."""
    path, variables = program
    count = 0

    def run(num_ranks=1, **keys):
        nonlocal count
        count += 1
        settings = settings_of(models["qwen2"], data, tmp_path / f"run{count}", max_steps=3) | {"device": "cuda"} | keys
        report = tmp_path / f"report{count}"
        report.mkdir()
        ended = Running(settings, num_ranks, program=path, SIMULATED_DEVICES=str(num_ranks), SIMULATED_REPORT=str(report),
                        **variables).wait(120)
        assert ended.status == 0, ended.text
        return ended, [json.loads(file.read_text()) for file in report.iterdir()]

    return run


def test_sft_is_as_on_the_cpu(simulated, reference):
    for keys in (dict(), dict(disable_gradient_checkpointing=True), dict(bf16=True), dict(offload_activations="true")):
        ended, _ = simulated(**keys)
        if not keys.get("bf16"):
            same_run(ended, reference("qwen2", max_steps=3, **keys))


def test_two_processes_are_as_one_on_the_cpu(simulated, reference):
    one = reference("qwen2", max_steps=3)
    for keys in (dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses"),
                 dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring"),
                 dict(gradient_accumulation_steps=2),
                 dict(gradient_accumulation_steps=2, zero_stage=3)):
        same_run(simulated(2, **keys)[0], one)


def test_launches_and_waits_of_a_step(simulated):
    """What more steps add. A step of four micro-batches of two layers."""
    few, more = (simulated(max_steps=steps)[1][0] for steps in (2, 6))
    a_step = {key: (more[key] - few[key]) / 4 for key in ("launches", "host_syncs")}
    print(a_step, {name: (n - few["host_syncs_of"].get(name, 0)) / 4 for name, n in more["host_syncs_of"].items()})
