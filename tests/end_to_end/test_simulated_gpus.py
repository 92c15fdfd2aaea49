"""Runs on simulated GPUs: what the program does with devices, their streams and their memory is right (or it would end
with what is wrong), its results are the CPU's, and its host waits for them as seldom as is known."""

import json
import os
import shutil
import subprocess

import pytest
from conftest import BUILD, PROGRAM, Running, same_run, settings_of, write_model
from shared import made_once


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

    def run(num_ranks=1, model="qwen2", **keys):
        nonlocal count
        count += 1
        folder = models.get(model, model)
        settings = settings_of(folder, data, tmp_path / f"run{count}", max_steps=3) | {"device": "cuda"} | keys
        report = tmp_path / f"report{count}"
        report.mkdir()
        ended = Running(settings, num_ranks, program=path, SIMULATED_DEVICES=str(num_ranks),
                        SIMULATED_REPORT=str(report), **variables).wait(120)
        assert ended.status == 0, ended.text
        return ended, [json.loads(file.read_text()) for file in report.iterdir()]

    return run


@pytest.mark.long
def test_sft_is_as_on_the_cpu(simulated, reference):
    for keys in (dict(), dict(disable_gradient_checkpointing=True), dict(bf16=True), dict(offload_activations="true")):
        ended, _ = simulated(**keys)
        if not keys.get("bf16"):
            same_run(ended, reference("qwen2", max_steps=3, **keys))


@pytest.mark.long
def test_two_processes_are_as_one_on_the_cpu(simulated, reference):
    one = reference("qwen2", max_steps=3)
    for keys, collective in ((dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses"), "messages"),
                             (dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring"), "messages"),
                             (dict(gradient_accumulation_steps=2), "allreduce"),
                             (dict(gradient_accumulation_steps=2, zero_stage=3), "all_gather")):
        ended, counts = simulated(2, **keys)
        same_run(ended, one)
        for rank in counts:  # by the groups of GPUs, and not through the host
            assert collective in rank["launches_of"], (keys, rank["launches_of"])


WAYS = {
    "LoRA": (1, dict(finetuning_type="lora", lora_dropout=0.1)),
    "states on the host": (1, dict(offload_optimizer=True)),
    "8-bit states": (1, dict(optim="adamw_8bit")),
    "Muon": (1, dict(optim="muon")),
    "ZeRO 2, states on the host": (2, dict(zero_stage=2, offload_optimizer=True)),
    "ZeRO 3, all on the host": (2, dict(zero_stage=3, offload_optimizer=True, offload_params=True)),
    "ZeRO 3, activations on the host": (2, dict(zero_stage=3, offload_activations="true")),
    "ring, activations in a file": (2, dict(sequence_parallel_mode="ring", offload_activations="disk")),
    "async-ulysses": (2, dict(sequence_parallel_mode="async-ulysses")),
    "llama3": (2, dict(sequence_parallel_mode="llama3")),
    "striped-ring": (2, dict(sequence_parallel_mode="striped-ring")),
    "loongtrain": (4, dict(sequence_parallel_mode="loongtrain")),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_train(simulated, reference, way):
    num_ranks, keys = WAYS[way]
    shared = "sequence_parallel_mode" in keys
    division = (dict(sequence_parallel_size=num_ranks) if shared else dict(gradient_accumulation_steps=4 // num_ranks))
    ended, _ = simulated(num_ranks, **keys, **division)
    kind = {key: value for key, value in keys.items() if key in ("finetuning_type", "lora_dropout", "optim")}
    # Muon's direction is computed in bf16, so that another last digit of a gradient may round it otherwise.
    same_run(ended, reference("qwen2", max_steps=3, **kind), tolerance=1e-3 if way == "Muon" else None)


HYBRID_WAYS = {
    "alone": (1, dict()),
    "alone, bf16 and activations on the host": (1, dict(bf16=True, offload_activations="true")),
    "heads": (2, dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses")),
    "a ring": (2, dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring")),
    "ZeRO 3": (2, dict(gradient_accumulation_steps=2, zero_stage=3)),
}


@pytest.mark.long
@pytest.mark.parametrize("way", HYBRID_WAYS)
def test_hybrids(simulated, known_run, data, place, way):
    """Qwen3.5's layers: a convolution and a recurrence of ATen's operators, by chunks."""
    folder = str(made_once(place / "qwen3_5", lambda folder: write_model(folder, "qwen3_5")))
    num_ranks, keys = HYBRID_WAYS[way]
    ended, counts = simulated(num_ranks, model=folder, **keys)
    for rank in counts:
        assert rank["launches_of"]["linalg_solve_triangular"] > 0
    if keys.get("bf16"):
        assert all(loss > 0 for loss in ended.logged("loss"))
    else:
        same_run(ended, known_run(settings_of(folder, data, "", max_steps=3)))


def test_launches_and_waits_of_a_step(simulated):
    """What a step more adds: four rows of a model of two layers, by ATen's operators alone."""
    few, more = (simulated(max_steps=steps)[1][0] for steps in (2, 6))
    launches = (more["launches"] - few["launches"]) / 4
    waits = {name: (count - few["host_syncs_of"].get(name, 0)) / 4 for name, count in more["host_syncs_of"].items()}
    assert launches < 1850, launches
    # Of each row: its tokens, labels, positions and documents and the frequencies of the rotation go to the device, the
    # host learns where labels are and reads two numbers. Of each step: what the update needs, the loss, the norm.
    most = {"copy to the device": 22, "nonzero": 4, "item": 8, "copy to the host": 2}
    assert {name: count for name, count in waits.items() if count > most.get(name, 0)} == {}, waits
