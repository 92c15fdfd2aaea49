"""Runs on simulated GPUs: what the program does with devices, their streams and their memory is right (or it would end
with what is wrong), its results are the CPU's, and its host waits for them as seldom as is known."""

import json
import os
import pathlib
import subprocess
import time

import pytest
from conftest import BUILD, Running, same_run, settings_of, write_dataset, write_model
from device import WORKSPACE, gpus_for, simulated_environment, simulated_program
from shared import made_once
from test_resume import halfway, same_bytes
from test_stages import STAGES, allowed, logged_by, stage_data  # noqa: F401


@pytest.fixture
def simulated(models, data, tmp_path):
    """simulated(num_ranks, **keys): the run, and what each of its ranks has counted. `rows`: composed for no kernels over
    rows."""
    count = 0

    def run(num_ranks=1, model="qwen2", rows="", **keys):
        nonlocal count
        count += 1
        folder = models.get(model, model)
        settings = settings_of(folder, data, tmp_path / f"run{count}", max_steps=3) | {"device": "cuda"} | keys
        report = tmp_path / f"report{count}"
        report.mkdir()
        ended = Running(settings, num_ranks, program=simulated_program(BUILD), SIMULATED_REPORT=str(report),
                        SIMULATED_ROWS=rows, **simulated_environment(BUILD)).wait(120)
        assert ended.status == 0, ended.text
        counts = [json.loads(file.read_text()) for file in report.iterdir()]
        return ended, sorted(counts, key=lambda count: count["rank"])

    return run


@pytest.mark.long
def test_sft_is_as_on_the_cpu(simulated, reference):
    for keys in (dict(), dict(disable_gradient_checkpointing=True), dict(bf16=True), dict(offload_activations="true")):
        ended, _ = simulated(**keys)
        if not keys.get("bf16"):
            same_run(ended, reference("qwen2", max_steps=3, **keys))


def test_passes_over_rows_are_kernels_or_operators(simulated, reference):
    """As with NVRTC and without it."""
    one = reference("qwen2", max_steps=3)
    for rows, kernels in (("", {"norm", "rotate", "swiglu", "log", "cross"}), ("composed", set())):
        ended, (counts,) = simulated(rows=rows)
        same_run(ended, one)
        assert {name.split("_")[0] for name in counts["launches_of"] if name.split("_v")[-1] in ("1", "4", "8")} == kernels


def test_heads_are_normed_and_rotated_at_once(simulated, known_run, data, place):
    """Qwen3's queries and keys, in one kernel for each forward and one for each backward. Without kernels over rows each
    takes operators of norm and rotation."""
    model = str(made_once(place / "qwen3", lambda folder: write_model(folder, folder.name)))
    one = known_run(settings_of(model, data, "", max_steps=3))
    for keys in (dict(), dict(disable_gradient_checkpointing=True)):
        ended, (counts,) = simulated(model=model, **keys)
        same_run(ended, one)
        launches = counts["launches_of"]
        heads = {name: count for name, count in launches.items() if "rotate_" in name}
        assert all(name.startswith("norm_rotate_") for name in heads), heads
        forward, backward = (sum(count for name, count in heads.items() if ("backward" in name) == is_backward)
                             for is_backward in (False, True))
        # With checkpointing a layer is computed twice.
        assert forward == backward * (1 if keys else 2) > 0, heads


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


@pytest.mark.parametrize("keys, collective", [
    ({}, "reduce_scatter"), (dict(reduce_scatter="exchange"), "all_to_all"), (dict(full_determinism=True), "all_to_all"),
    (dict(full_determinism=True, reduce_scatter="nccl"), "reduce_scatter"),
], ids=["by itself", "exchange", "deterministic", "asked for"])
def test_how_gradients_are_summed(simulated, reference, keys, collective):
    """Three ranks' sum by a ring has another order than that of ranks. A unit is summed at once, for each row."""
    one = reference("qwen2", max_steps=3, gradient_accumulation_steps=6)
    ended, counts = simulated(3, gradient_accumulation_steps=2, zero_stage=3, **keys)
    same_run(ended, one)
    for rank in counts:
        launches = rank["launches_of"]
        assert launches.get(collective, 0) > 0, launches
        assert ("reduce_scatter" in launches) == (collective == "reduce_scatter"), launches
    is_warned = "warning: full_determinism: true with reduce_scatter: nccl" in ended.text
    assert is_warned == (keys.keys() == {"full_determinism", "reduce_scatter"}), ended.text


WAYS = {
    "DoRA": (1, dict(finetuning_type="lora", lora_dropout=0.1, use_dora=True)),
    "states on the host": (1, dict(offload_optimizer=True)),
    "8-bit states": (1, dict(optim="adamw_8bit")),
    "Muon": (1, dict(optim="muon")),
    "ZeRO 1": (2, dict(zero_stage=1)),
    "hybrid shards": (4, dict(zero_stage=2, zero_shard_size=2)),
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
    kind = {key: value for key, value in keys.items() if key in ("finetuning_type", "lora_dropout", "use_dora", "optim")}
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
    """Qwen3.5's layers: a convolution and a recurrence by the kernels of GPUs."""
    folder = str(made_once(place / "qwen3_5", lambda folder: write_model(folder, "qwen3_5")))
    num_ranks, keys = HYBRID_WAYS[way]
    ended, counts = simulated(num_ranks, model=folder, **keys)
    for rank in counts:
        assert rank["launches_of"]["delta_scan_narrow_b" if keys.get("bf16") else "delta_scan_narrow_f"] > 0
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
        # Both exchanges of rows in each pass through a layer, and that of counts in a forward.
        passes, launches = rank["launches_of"]["order_arrived"], rank["launches_of"]
        assert 2 * passes < launches["all_to_all"] < 3 * passes, launches


def test_experts_in_fp32_are_cast_once_a_pass(simulated, place):
    """In rows in which an expert gets 128 tokens on average, which the account knows."""
    model = str(made_once(place / "qwen3_moe", lambda folder: write_model(folder, folder.name)))
    rows = made_once(place / "rows_of_experts", lambda folder: write_dataset(folder, num_rows=4, shortest=600, longest=600))
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    # Inputs, and results of gate and up, in bf16: at::_grouped_mm copies them on some GPUs, and this GPU is not known.
    copied = 2 * config["num_experts_per_tok"] * (config["hidden_size"] + 2 * config["moe_intermediate_size"])
    for length, count in ((500, 3 * 2 * 2), (380, 0)):  # gate, up, down in forward and backward of two layers
        ended, (counts,) = simulated(model=model, dataset_dir=str(rows), bf16=True, cutoff_len=length, max_steps=1,
                                     gradient_accumulation_steps=1)
        assert counts["launches_of"].get("cast_matrices", 0) == count, counts["launches_of"]
        memory = json.loads((ended.output_dir / "memory.json").read_text())
        assert memory["facts"]["num_tokens"] == length
        for rank in memory["measured"]:
            account = memory["device"] - WORKSPACE - (copied * length if count else 0)
            assert 0.95 < account / rank["device"] < 1.05, memory


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


# How often the host waits in a step of four rows, by what it waits for, beside once for the norm, before the update, with
# which the loss is there ("item"). In bf16 no host knows how many rows go to each expert. Where it must, in fp32 and where
# ranks share out the experts, it waits once in each forward of such a layer, an auxiliary loss's look ahead among them:
# glm4_moe has one, qwen3_moe two. Where the host updates, of each of four units (embedding, layers, head) for its sum, of
# each row where ranks divide the sums, and for the shares' norms.
EXPERTS = dict(model="glm4_moe", bf16=True)
TWO_GROUPS = dict(gradient_accumulation_steps=2, logging_steps=100)  # a log line of several processes waits once more
WAITS = {
    "alone": (1, dict(kept_mlp_layers=0), {}),
    "pure_bf16": (1, dict(pure_bf16=True), {}),
    "LoRA, packed, 8-bit states": (1, dict(neat_packing=True, cutoff_len=96, finetuning_type="lora", lora_dropout=0.1,
                                           optim="adamw_8bit"), {}),
    "DPO, shared prompts, Muon": (1, STAGES["sigmoid"] | dict(pref_share_prompt=True, optim="muon"), {}),
    "activations on the host": (1, dict(offload_activations="true"), {}),
    "optimizer on the host": (2, TWO_GROUPS | dict(offload_optimizer=True, zero_stage=2), {"event": 2 * 4 + 1}),
    "data parallel": (2, TWO_GROUPS | dict(zero_stage=3), {}),
    "data parallel, a log line": (2, TWO_GROUPS | dict(logging_steps=1), {"copy to the host": 1}),
    "KTO": (1, STAGES["kto"], {}),
    "kto_pair, data parallel": (2, STAGES["kto_pair"] | TWO_GROUPS, {}),
    "a recurrence, heads exchanged": (2, TWO_GROUPS | dict(model="qwen3_5", sequence_parallel_size=2), {}),
    "experts": (1, EXPERTS, {}),
    "experts, auxiliary loss": (1, EXPERTS | dict(model="qwen3_moe", moe_aux_loss_coef=0.05), {}),
    "clamped experts with biases": (1, EXPERTS | dict(model="gpt_oss"), {}),
    "adapters of experts, ZeRO": (2, EXPERTS | TWO_GROUPS | dict(model="qwen3_moe", finetuning_type="lora", lora_rank=8,
                                                                lora_target="all", zero_stage=3), {}),
    "experts one after the other, auxiliary loss": (1, dict(model="qwen3_moe", moe_aux_loss_coef=0.05), {"event": 4 * 2 * 2}),
    "experts that are shared out": (2, EXPERTS | TWO_GROUPS | dict(expert_parallel_size=2), {"event": 2}),
}


@pytest.mark.parametrize("kind", WAITS)
def test_launches_and_waits_of_a_step(simulated, kind, stage_data, place):  # noqa: F811
    """What a step more adds."""
    num_ranks, keys, expected = WAITS[kind]
    keys = dict(keys)
    if "model" in keys:
        keys["model"] = str(made_once(place / keys["model"], lambda folder: write_model(folder, folder.name)))
    few, more = (simulated(num_ranks, max_steps=steps, **keys)[1] for steps in (2, 4))
    for before, after in zip(few, more):
        waits = {name: (count - before["host_syncs_of"].get(name, 0)) / 2
                 for name, count in after["host_syncs_of"].items()}
        assert {name: count for name, count in waits.items() if count} == {"item": 1} | expected, waits
    if kind == "alone":  # two layers, with kernels over rows
        launches = (more[0]["launches"] - few[0]["launches"]) / 2
        assert launches < 770, launches


def test_an_evaluation_does_not_wait_for_each_row(simulated):
    """Its losses are summed where they are. Every half second the ranks ask each other whether to stop, and wait."""
    (without,), (counts,) = (simulated(max_steps=1, **keys)[1] for keys in (
        {}, dict(eval_dataset="held_out", per_device_eval_batch_size=1, eval_strategy="steps", eval_steps=1)))
    assert counts["launches"] > without["launches"]
    waits = {name: counts["host_syncs_of"].get(name, 0) - without["host_syncs_of"].get(name, 0)
             for name in counts["host_syncs_of"].keys() | without["host_syncs_of"].keys()}
    # Of some ten rows: where it asks, and at the end.
    assert sum(count for name, count in waits.items() if name != "copy to the device") <= 6, waits


def test_mlps_keep_gate_and_up_where_the_gpu_has_room(simulated, monkeypatch):
    """As many layers as fit, by the account, into nine tenths of the GPU: the same bits, and fewer launches."""
    def needed(layers):
        run, counts = simulated(kept_mlp_layers=layers)
        memory = json.loads((run.output_dir / "memory.json").read_text())
        return memory["device"] + sum(line["device"] for line in memory["account"] if line["name"] == "Beside tensors"), run, counts

    none, expected, launched = needed(0)
    # Tensors kept by the last layer are free again at the peak, in the backward of the first.
    two, _, _ = needed(2)
    assert needed(1)[0] == none < two
    for bytes_of_gpu, count in ((none - 100, "none"), (none + 100, "1"), (two - 100, "1"), (two + 100, "2")):
        monkeypatch.setenv("SIMULATED_MEMORY", str(-(-bytes_of_gpu * 10 // 9)))
        run, counts = simulated()
        assert f"Gate and up are kept of {count} of 2 layers" in run.text, (count, run.text)
        assert run.logged("loss") == expected.logged("loss") and run.logged("grad_norm") == expected.logged("grad_norm")
        # Of each row and layer two products at least are computed once less.
        saved = launched[0]["launches"] - counts[0]["launches"]
        assert saved >= 3 * 4 * 2 * {"none": 0, "1": 1, "2": 2}[count] and (saved > 0) == (count != "none"), (count, saved)
    monkeypatch.setenv("SIMULATED_MEMORY", str(4 * two))
    for keys in (dict(offload_activations="true"), dict(tiled_mlp=2), dict(disable_gradient_checkpointing=True)):
        assert "Gate and up" not in simulated(**keys)[0].text, keys


def test_a_rank_that_hangs_and_lives_is_named(models, data, tmp_path):
    """Its heart beats on, and no host waits in a collective of GPUs: those who wait for it see that it has come to
    fewer. All ranks end, long before the collectives' own deadline, and say who it is."""
    # The set-up waits about 70 times for a device, a step 2 times.
    settings = settings_of(models["qwen2"], data, tmp_path / "out", max_steps=1000, logging_steps=1, ddp_timeout=4)
    running = Running(settings | {"device": "cuda", "sequence_parallel_size": 2}, 2, program=simulated_program(BUILD),
                      SIMULATED_HANG="1:120", **gpus_for(2), **simulated_environment(BUILD))
    start = time.monotonic()
    ended = running.wait(60)
    assert time.monotonic() - start < 50
    assert ended.status == 1, ended.text
    for text in (log.read_text() for log in running.logs):
        assert "Rank 1 (host" in text and f"process {running.ranks[1].pid})" in text, text
        assert "has not come to collective" in text and "where rank 0 waits, in step " in text, text


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
