"""However states are divided and wherever they lie, the numbers of a run are those of one process."""

import json
import resource
import signal

import pytest
from conftest import (ADAM_EPSILON, TOLERANCE, Running, add_dataset, bytes_of_weights, relative_difference, same_run, settings_of,
                      made_once, words_of_real_text, write_model)
from safetensors.torch import load_file

NUM_STEPS = 10
SETTINGS = dict(max_steps=NUM_STEPS, learning_rate=3e-4, weight_decay=0.1)


def weights_of(folder):
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_file(folder / "model.safetensors")
    weights = {}
    for name in set(json.loads(index.read_text())["weight_map"].values()):
        weights |= load_file(folder / name)
    return weights


def same_weights(left, right):
    """Each step moves a weight by learning_rate / adam_epsilon times its gradient at the most, clipped to norm 1."""
    most = NUM_STEPS * SETTINGS["learning_rate"] / ADAM_EPSILON
    left, right = weights_of(left), weights_of(right)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        apart = (left[name].float() - right[name].float()).abs().max().item()
        assert apart < TOLERANCE * most, name


LAYOUTS = {
    "zero0": dict(zero_stage=0),
    "zero1": dict(zero_stage=1),
    "zero2": dict(zero_stage=2),
    "zero3": dict(zero_stage=3),
    "hybrid1": dict(zero_stage=1, zero_shard_size=2),
    "hybrid3": dict(zero_stage=3, zero_shard_size=2),
    "zero0 offload_optimizer": dict(offload_optimizer=True),
    "zero2 offload_optimizer": dict(zero_stage=2, offload_optimizer=True),
    "zero3 offload_optimizer": dict(zero_stage=3, offload_optimizer=True),
    "zero3 offload_params": dict(zero_stage=3, offload_params=True),
    "hybrid3 offload": dict(zero_stage=3, zero_shard_size=2, offload_optimizer=True, offload_params=True),
    "everything": dict(zero_stage=3, offload_optimizer=True, offload_params=True, offload_activations=True, tiled_mlp=3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout, reference, train):
    """4 ranks are 2 data-parallel groups of 2 that share rows."""
    one = reference("llama", **SETTINGS)
    many = train("llama", 4, sequence_parallel_size=2, gradient_accumulation_steps=2, **SETTINGS, **LAYOUTS[layout])
    assert len(many.logged("loss")) == NUM_STEPS
    same_run(one, many)
    same_weights(one.output_dir, many.output_dir)


@pytest.fixture(scope="session")
def models(models, place):
    """More: windows and norms behind the halves of layers, tensors that are several parameters, sinks and stacked experts."""
    def made(kind):
        return str(made_once(place / kind, lambda folder: write_model(folder, kind)))

    return models | {kind: made(kind) for kind in ("gemma3", "phi3", "gpt_oss")}


@pytest.mark.parametrize("model, layout", [("gemma3", "everything"), ("phi3", "zero3"),
                                           *(("gpt_oss", layout) for layout in ("zero1", "zero2", "zero3"))])
def test_other_families(model, layout, reference, train):
    one = reference(model, **SETTINGS)
    many = train(model, 4, sequence_parallel_size=2, gradient_accumulation_steps=2, **SETTINGS, **LAYOUTS[layout])
    same_run(one, many)
    same_weights(one.output_dir, many.output_dir)


@pytest.mark.parametrize("layout", ["zero0", "zero2 offload_optimizer", "zero3", "hybrid3"])
def test_four_bits(layout, reference, train):
    keys = SETTINGS | dict(finetuning_type="lora", quantization_bit=4)
    one = reference("llama", **keys)
    many = train("llama", 4, sequence_parallel_size=2, gradient_accumulation_steps=2, **keys, **LAYOUTS[layout])
    assert len(many.logged("loss")) == NUM_STEPS
    same_run(one, many)


def test_one_process_offloads(reference, train):
    one = reference("qwen2", **SETTINGS)
    same_run(one, train("qwen2", zero_stage=3, offload_optimizer=True, offload_params=True, **SETTINGS))


def test_deepspeed_file(reference, train, tmp_path):
    """As LLaMA-Factory ships it, ds_z3_offload_config.json."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
                 "hysteresis": 2, "min_loss_scale": 1},
        "bf16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "cpu", "pin_memory": True}, "overlap_comm": False,
            "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True}}))
    run = train("llama", 2, deepspeed=str(path), gradient_accumulation_steps=2, **SETTINGS)
    same_run(reference("llama", **SETTINGS), run)
    # Each rank wrote a file of its own, so parameters were divided.
    assert (run.output_dir / "model-00002-of-00002.safetensors").exists()


def counts_of(run):
    """Tokens and work so far: of the state, the results and each log line."""
    results = json.loads((run.output_dir / "train_results.json").read_text())
    state = json.loads((run.output_dir / "trainer_state.json").read_text())
    lines = [json.loads(line) for line in (run.output_dir / "trainer_log.jsonl").read_text().splitlines()]
    return ([results["num_input_tokens_seen"], results["total_flos"], state["num_input_tokens_seen"]]
            + [line["total_tokens"] for line in lines])


def test_rows_that_do_not_go_round(reference, train):
    """22 rows, 8 a step, and 5 to evaluate: some groups have none while others compute."""
    settings = dict(max_steps=6, max_samples=22, learning_rate=3e-4, eval_dataset="held_out", eval_strategy="steps",
                    eval_steps=2, per_device_eval_batch_size=2)
    one = reference("llama", gradient_accumulation_steps=8, **settings)
    for stage in (2, 3):
        many = train("llama", 4, gradient_accumulation_steps=2, zero_stage=stage, **settings)
        same_run(one, many)
        assert relative_difference(one.logged("eval_loss"), many.logged("eval_loss")) < TOLERANCE
        # Who has no row computes one of its own; it is nobody's data.
        assert counts_of(many) == counts_of(one)


@pytest.fixture(scope="session")
def preferences(data, place):
    words = words_of_real_text()
    pairs = [{"instruction": " ".join(words[9 * i : 9 * i + 12]), "input": "",
              "chosen": " ".join(words[7 * i + 300 : 7 * i + 308 + i]),
              "rejected": " ".join(words[5 * i + 500 : 5 * i + 509])} for i in range(11)]
    add_dataset(place / "data", "sharded_pairs", pairs, ranking=True,
                columns={"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"})
    verdicts = [{"instruction": pair["instruction"], "output": pair["chosen"], "label": i % 3 != 0}
                for i, pair in enumerate(pairs)]
    add_dataset(place / "data", "sharded_verdicts", verdicts,
                columns={"prompt": "instruction", "response": "output", "kto_tag": "label"})
    return data


@pytest.mark.parametrize("model, keys", [  # qwen2 has a tied head, llama one of its own
    ("qwen2", dict(stage="dpo", dataset="sharded_pairs")),
    ("llama", dict(stage="dpo", dataset="sharded_pairs")),
    ("llama", dict(stage="dpo", dataset="sharded_pairs", pref_loss="kto_pair")),
    ("qwen2", dict(stage="dpo", dataset="sharded_pairs", pref_loss="orpo")),
    ("llama", dict(stage="dpo", dataset="sharded_pairs", precompute_ref_log_probs=True)),
    ("qwen2", dict(stage="dpo", dataset="sharded_pairs", finetuning_type="lora", learning_rate=1e-3)),
    ("qwen2", dict(stage="kto", dataset="sharded_verdicts")),
    ("llama", dict(stage="rm", dataset="sharded_pairs")),
    ("llama", dict(finetuning_type="freeze", freeze_trainable_layers=1, max_samples=11)),
    ("qwen2", dict(disable_gradient_checkpointing=True, max_samples=11)),
    ("llama", dict(disable_gradient_checkpointing=True, max_samples=11)),
], ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value.values())))
def test_stages(model, keys, preferences, reference, train):
    """11 examples, 4 a step: idle rows in every stage."""
    settings = dict(learning_rate=3e-4, num_train_epochs=2, max_steps=-1) | keys
    one = reference(model, **settings)
    many = train(model, 2, zero_stage=3, gradient_accumulation_steps=2, **settings)
    same_run(one, many)


def test_bf16(reference, train):
    """Matrices are gathered in bf16, in which they are used; gradients are summed in fp32."""
    one = reference("llama", bf16=True, **SETTINGS)
    for layout in ({}, dict(zero_stage=3), dict(zero_stage=1, offload_optimizer=True),
                   dict(zero_stage=3, offload_optimizer=True, offload_params=True)):
        many = train("llama", 2, bf16=True, gradient_accumulation_steps=2, **SETTINGS, **layout)
        # Rows are on other ranks, each of which sums its own in the order of one process: roundings
        # of bf16 stay the same, but for those that fp32 sums in another order tip over.
        same_run(one, many, tolerance=2e-3)
        assert {str(w.dtype) for w in weights_of(many.output_dir).values()} == {"torch.bfloat16"}


def test_saving(models, train):
    """Every rank writes a part; transformers reads the whole."""
    from transformers import AutoModelForCausalLM

    keys = dict(max_steps=2, save_strategy="steps", save_steps=1, save_total_limit=1)
    one, many = train("llama", **keys), train("llama", 4, zero_stage=3, gradient_accumulation_steps=1, **keys)
    same_run(one, many)
    assert [p.name for p in many.output_dir.glob("checkpoint-*")] == ["checkpoint-2"]
    for folder in (many.output_dir, many.output_dir / "checkpoint-2"):
        parts = sorted(p.name for p in folder.glob("model*.safetensors"))
        assert parts == [f"model-{k:05}-of-00004.safetensors" for k in range(1, 5)]
        sizes = [(folder / part).stat().st_size for part in parts]
        assert max(sizes) < 2 * min(sizes)
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.architectures == ["LlamaForCausalLM"]
        same_weights(one.output_dir, folder)
    # Trained on from, with as many files as it has.
    again = Running(settings_of(many.output_dir, "", many.output_dir.parent / "again") | dict(
        dataset_dir=json.loads((many.output_dir.parent / (many.output_dir.name + ".yaml")).read_text())["dataset_dir"],
        max_steps=1, zero_stage=3, gradient_accumulation_steps=2), 2).wait()
    assert again.status == 0, again.text


@pytest.mark.parametrize("model", ["llama", "phi3"])
def test_adapters_are_saved_whole(model, train):
    keys = dict(finetuning_type="lora", max_steps=3, learning_rate=1e-3)
    one = train(model, **keys)
    many = train(model, 2, zero_stage=3, gradient_accumulation_steps=2, **keys)
    left, right = (load_file(run.output_dir / "adapter_model.safetensors") for run in (one, many))
    assert left.keys() == right.keys()
    for name in left:
        assert (left[name] - right[name]).abs().max() < 1e-5, name


def test_a_full_disk_on_one_rank(models, data, tmp_path):
    """The rank that cannot write says so; the others do not wait for it."""
    limit = bytes_of_weights(models["llama"]) // 2

    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    settings = settings_of(models["llama"], data, tmp_path / "run", max_steps=1, zero_stage=3)
    run = Running(settings, 2, preexec=small_files_only).wait()
    assert run.statuses == [1, 1]
    assert "model-0000" in run.texts[0] and "File too large" in run.texts[0]
    assert not list((tmp_path / "run").glob("*.safetensors"))


def test_8_bit_states(train):
    plain = train("llama", max_steps=10)
    for layout in (dict(), dict(zero_stage=3, offload_optimizer=True)):
        small = train("llama", 2, optim="adamw_8bit", gradient_accumulation_steps=2, max_steps=10, **layout)
        assert 0 < relative_difference(plain.logged("loss"), small.logged("loss")) < 5e-3


def test_muon(train):
    """A matrix that processes divide is whole for its update. Its direction is computed in bf16, so that the last digit
    of a sum of gradients, which the processes add up in another order, may round it otherwise."""
    adamw, one = train("llama", max_steps=10), train("llama", optim="muon", max_steps=10)
    assert relative_difference(adamw.logged("loss"), one.logged("loss")) > 1e-3
    for layout in (dict(), dict(zero_stage=2), dict(zero_stage=3, offload_optimizer=True, offload_params=True)):
        many = train("llama", 2, optim="muon", gradient_accumulation_steps=2, max_steps=10, **layout)
        assert relative_difference(one.logged("loss"), many.logged("loss")) < 1e-3


@pytest.mark.parametrize("keys, message", [
    (dict(zero_stage=3, zero_shard_size=3), "zero_shard_size: 3 does not divide the number of processes, 2"),
    (dict(zero_shard_size=2), "zero_shard_size is the number of processes that share a copy of the states; it wants zero_stage"),
    (dict(zero_stage=2, offload_params=True), "offload_params gathers parameters for each use, as zero_stage: 3 does; set zero_stage: 3"),
    (dict(zero_stage=4), "zero_stage: 4 was given"),
])
def test_refused_keys(keys, message, models, data, tmp_path):
    run = Running(settings_of(models["llama"], data, tmp_path / "run", **keys), 2).wait()
    assert run.statuses == [1, 1]
    assert message in run.texts[0]


@pytest.mark.parametrize("content, keys, message", [
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"}}}, {},
     'zero_optimization.offload_param.device: "nvme" is not supported; give "cpu" or "none"'),
    ({"zero_optimization": {"stage": 2}}, dict(zero_stage=3), "zero_optimization.stage is 2, but zero_stage is 3; keep one"),
    ({"zero_optimization": {"stage": 5}}, {}, "zero_optimization.stage: 5 is not supported; give 0, 1, 2 or 3"),
    ({"fp16": {"enabled": True}}, {}, "fp16.enabled: true is not supported; use bf16"),
    ({"bf16": {"enabled": True}}, {}, "bf16.enabled is true, but bf16 (or pure_bf16) is false"),
    ({"train_micro_batch_size_per_gpu": 4}, {},
     "train_micro_batch_size_per_gpu is 4, but per_device_train_batch_size is 1; make them equal"),
    ({"gradient_clipping": 0.5}, {}, "gradient_clipping is 0.5, but max_grad_norm is 1.0"),
    ({"train_batch_size": 32}, {}, 'train_batch_size: 32 is not supported; set it to "auto"'),
    ({"optimizer": {"type": "AdamW"}}, {}, 'optimizer: {"type":"AdamW"} is not supported; remove it'),
    ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, {},
     "zero_optimization.zero_quantized_weights: true is not supported"),
    ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, {},
     "zero_optimization.offload_param wants stage 3; the stage is 2"),
    ("{", {}, "broken JSON"),
])
def test_refused_deepspeed_files(content, keys, message, models, data, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    settings = settings_of(models["llama"], data, tmp_path / "run", deepspeed=str(path), **keys)
    run = Running(settings).wait()
    assert run.status == 1
    assert message in run.text and str(path) in run.text
