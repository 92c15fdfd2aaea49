"""Runs on simulated GPUs: what the program does with devices, their streams and their memory is right (or it would end
with what is wrong), its results are the CPU's, and its host waits for them as seldom as is known."""

import json
import os
import subprocess
import time

import pytest
from conftest import BUILD, Running, same_run, settings_of, write_model
from device import gpus_for, simulated_environment, simulated_program
from shared import made_once
from test_resume import halfway, same_bytes
from test_stages import STAGES, allowed, logged_by, stage_data  # noqa: F401


@pytest.fixture
def simulated(models, data, tmp_path):
    """simulated(num_ranks, **keys): the run, and what each of its ranks has counted."""
    count = 0

    def run(num_ranks=1, model="qwen2", **keys):
        nonlocal count
        count += 1
        folder = models.get(model, model)
        settings = settings_of(folder, data, tmp_path / f"run{count}", max_steps=3) | {"device": "cuda"} | keys
        report = tmp_path / f"report{count}"
        report.mkdir()
        ended = Running(settings, num_ranks, program=simulated_program(BUILD), SIMULATED_REPORT=str(report),
                        **simulated_environment(BUILD)).wait(120)
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


@pytest.mark.parametrize("stage", ["sigmoid", "kto", "rm"])
def test_stages(simulated, reference, stage_data, stage):  # noqa: F811
    """What preferences log beside the loss comes from the device, too."""
    one = reference("qwen2", max_steps=3, **STAGES[stage])
    ended, _ = simulated(**STAGES[stage])
    same_run(ended, one)
    for key in logged_by(stage):
        assert one.logged(key) and ended.logged(key) == pytest.approx(one.logged(key), **allowed(one, stage)), key


def test_experts_that_ranks_share_out(simulated, known_run, data, place):
    model = str(made_once(place / "qwen3_moe", lambda folder: write_model(folder, folder.name)))
    keys = dict(model_name_or_path=model, moe_aux_loss_coef=0.05)
    one = known_run(settings_of(model, data, "", max_steps=3, **keys))
    ended, counts = simulated(2, expert_parallel_size=2, gradient_accumulation_steps=2, **keys)
    same_run(ended, one)
    for rank in counts:
        assert "all_to_all" in rank["launches_of"], rank["launches_of"]


SAVED = {
    "LoRA with dropout, an evaluation": (1, dict(finetuning_type="lora", lora_dropout=0.2, eval_dataset="held_out",
                                                 eval_strategy="steps", eval_steps=2)),
    "ZeRO 3 in bf16, all on the host": (2, dict(zero_stage=3, bf16=True, offload_optimizer=True, offload_params=True,
                                                gradient_accumulation_steps=2)),
    "8-bit states": (1, dict(optim="adamw_8bit")),
}


@pytest.mark.parametrize("kind", SAVED)
def test_two_steps_and_two_are_four(simulated, tmp_path, kind):
    num_ranks, keys = SAVED[kind]
    keys |= dict(max_steps=4, save_strategy="steps", save_steps=2)
    whole, _ = simulated(num_ranks, **keys)
    resumed, _ = simulated(num_ranks, **keys, output_dir=halfway(whole, 2, tmp_path / "halves"))
    assert "step 2 of 4" in resumed.text
    same_bytes(whole, resumed)


def test_launches_and_waits_of_a_step(simulated):
    """What a step more adds: four rows of a model of two layers, by ATen's operators alone."""
    few, more = (simulated(max_steps=steps)[1][0] for steps in (2, 6))
    launches = (more["launches"] - few["launches"]) / 4
    waits = {name: (count - few["host_syncs_of"].get(name, 0)) / 4 for name, count in more["host_syncs_of"].items()}
    assert launches < 1780, launches
    # The host waits for the norm, before the update, with which the loss is there.
    assert {name: count for name, count in waits.items() if count} == {"item": 1}, waits


def test_a_rank_that_hangs_and_lives_is_named(models, data, tmp_path):
    """Its heart beats on, and no host waits in a collective of GPUs: those who wait for it see that it has come to
    fewer. All ranks end, long before the collectives' own deadline, and say who it is."""
    settings = settings_of(models["qwen2"], data, tmp_path / "out", max_steps=1000, logging_steps=1, ddp_timeout=4)
    running = Running(settings | {"device": "cuda", "sequence_parallel_size": 2}, 2, program=simulated_program(BUILD),
                      SIMULATED_HANG="1:60", **gpus_for(2), **simulated_environment(BUILD))
    start = time.monotonic()
    ended = running.wait(60)
    assert time.monotonic() - start < 50
    assert ended.status == 1, ended.text
    for text in (log.read_text() for log in running.logs):
        assert "Rank 1 (host" in text and f"process {running.ranks[1].pid})" in text, text
        assert "has not come to collective" in text and "where rank 0 waits, in " in text, text


@pytest.mark.parametrize("words", [["--layer", "--dtype", "bf16", "--checkpointing"], ["--waves", "1"]])
def test_attention_is_measured_on_gpus(tmp_path, words):
    ran = subprocess.run(
        [simulated_program(BUILD), "bench", "attention", "--device", "cuda", "--tokens", "96", "--repeats", "2",
         "--head-dim", "16", "--methods", "ulysses", "zigzag-ring", "--output", tmp_path, *words],
        capture_output=True, text=True, timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | gpus_for(2) | simulated_environment(BUILD))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads((tmp_path / "attention_bench.json").read_text())
    assert result["device"] == "simulated accelerator" and result["ranks"] == 2  # one for each
    assert [method["name"].split(",")[0] for method in result["methods"]] == ["undistributed", "ulysses", "zigzag-ring"]
    for method in result["methods"]:
        assert method["sent_bytes"] == method["formula_bytes"], method
        assert max(method["relative_errors"].values()) < (3e-2 if "bf16" in words else 1e-5), method
        assert min(method["peak_bytes_of_ranks"]) > 0 and method["pass_seconds"] > 0
    assert max(method["sent_bytes"]["forward"] for method in result["methods"]) > 0
