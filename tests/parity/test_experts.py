"""Mixtures of experts against transformers: the auxiliary loss, training, adapters, and what may not change them."""

import json
import subprocess

import pytest
import torch
from conftest import PROGRAM, Running, relative_difference, run_to_end, settings_of, write_dataset, write_model
from experts import by_file_name
from model_configs import CONFIGS
from pairs import encoded_rows, load, pair_columns, trl_run, write_preference_data
from safetensors.torch import load_file, save_file
from shared import made_once
from test_lora import assert_same_training, distance, logits_of, with_adapter
from test_models import assert_gradients_equal, make_model, make_row, probe, relative_error
from test_trainer import WEIGHTS, our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE, of_log_ratio, of_training
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

NUM_STEPS = 5
SHARED = dict(learning_rate=1e-3, adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, weight_decay=0.1)
LOADS = ("expert_load/max_mean", "expert_load/max_worst", "expert_load/unused")


@pytest.fixture(scope="module")
def own_place(tmp_path_factory):
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def model_folders(own_place):
    return {kind: str(write_model(own_place / kind, kind)) for kind in ("qwen3_moe", "glm4_moe", "deepseek_v3", "qwen3_next")}


@pytest.fixture(scope="module")
def model_folder(model_folders):
    return model_folders["qwen3_moe"]


@pytest.fixture(scope="module")
def short_rows(own_place):
    """Short, so that few choices of experts are close."""
    folder = own_place / "for_experts"
    write_dataset(folder, num_rows=24, shortest=4, longest=20)
    return str(folder)


def run(settings, num_ranks=1):
    return run_to_end(settings, num_ranks)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("documents", [[97], [40, 1, 23, 66]], ids=["one", "packed"])
@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-some-dense", "gpt-oss", "qwen3_next-some-dense", "qwen3_5_moe"])
def test_auxiliary_loss(name, documents, tmp_path):
    """Over all tokens of the row and all layers, whatever documents are in it."""
    config, coefficient = CONFIGS[name], 0.3
    model = make_model(config)
    model.save_pretrained(tmp_path / "model")
    tokens, labels = make_row(config.vocab_size, documents)
    outputs = [model(input_ids=part[None], output_router_logits=True) for part in tokens.split(documents)]
    routers = tuple(torch.cat(layers) for layers in zip(*(output.router_logits for output in outputs)))
    auxiliary = load_balancing_loss_func(routers, config.num_experts, config.num_experts_per_tok)
    logits = torch.cat([output.logits[0] for output in outputs])
    loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100)
    (loss + coefficient * auxiliary).backward()
    for checkpointing in (False, True):
        results = probe(tmp_path / "model", tmp_path, tokens, labels, documents, ["auxiliary_gradients"],
                        checkpointing=checkpointing, coefficient=coefficient)
        assert results["aux_loss"].item() == pytest.approx(auxiliary.item(), rel=1e-5)
        assert_gradients_equal(results, model, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["qwen3-moe-some-dense", "glm4-moe", "deepseek-v3", "gpt-oss"])
def test_saved_folder(name, dtype, tmp_path):
    """transformers reads what is saved, in several files, and has what it had before, to the bit. Layers that predict
    further tokens, which it drops as well, may be in the files."""
    config = CONFIGS[name]
    model = make_model(config)
    for parameter in model.parameters():  # and not the buffer
        parameter.data = parameter.data.to(dtype)
    model.save_pretrained(tmp_path / "model")
    if name in ("glm4-moe", "deepseek-v3"):  # families that have such layers
        file = tmp_path / "model" / "model.safetensors"
        save_file(load_file(file) | {"model.layers.3.eh_proj.weight": torch.ones(2, 2)}, file, {"format": "pt"})
        keys = json.loads((tmp_path / "model" / "config.json").read_text())
        (tmp_path / "model" / "config.json").write_text(json.dumps(keys | dict(num_nextn_predict_layers=1)))
    tokens, labels = make_row(config.vocab_size, [60])
    kind = "bfloat16" if dtype == torch.bfloat16 else "float32"
    probe(tmp_path / "model", tmp_path, tokens, labels, [60], [], save_to=str(tmp_path / "copy"),
          save_shard_bytes=100_000, save_dtype=kind, parameter_dtype=kind)
    copy, info = AutoModelForCausalLM.from_pretrained(tmp_path / "copy", dtype=dtype, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    if name in ("glm4-moe", "deepseek-v3"):  # nobody looks for them in what is saved
        assert not any("eh_proj" in key for shard in (tmp_path / "copy").glob("*.safetensors") for key in load_file(shard))
        assert copy.config.num_mtp_layers == 0
    for key, value in model.state_dict().items():
        assert value.dtype == (torch.float32 if key.endswith("correction_bias") else dtype)
        assert torch.equal(value, copy.state_dict()[key]), key


@pytest.mark.parametrize("kind, auxiliary", [("qwen3_moe", None), ("qwen3_moe", 0.05), ("glm4_moe", None)])
def test_training(kind, auxiliary, model_folders, short_rows, tmp_path):
    """transformers' Trainer (its grouped products know no fp64), whose auxiliary loss is of each micro-batch: here of one, of four rows."""
    model_folder = model_folders[kind]
    shared = SHARED | dict(per_device_train_batch_size=4, gradient_accumulation_steps=1)
    settings = settings_of(model_folder, short_rows, tmp_path / "ours", disable_shuffling=True) | shared
    if auxiliary:
        settings["moe_aux_loss_coef"] = auxiliary
    finished = run(settings)

    def prepare(model):
        model.set_experts_implementation("eager")
        model.config.output_router_logits = bool(auxiliary)
        model.router_aux_loss_coef = auxiliary
        return model

    rows = our_rows({key: value for key, value in settings.items() if key != "moe_aux_loss_coef"}, tmp_path)
    history, model = transformers_run(model_folder, rows, tmp_path, prepare, **shared)
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in history]) < TOLERANCE, key
    assert ("aux_loss" in finished.history[0]) == bool(auxiliary)
    saved = AutoModelForCausalLM.from_pretrained(finished.output_dir, dtype=torch.float32).state_dict()
    start = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).state_dict()
    assert distance(saved, model.state_dict()) < WEIGHTS * distance(start, model.state_dict())
    begin, end = [load_file(f"{folder}/model.safetensors") for folder in (model_folder, finished.output_dir)]
    biases = [name for name in begin if name.endswith("correction_bias")]
    assert len(biases) == (kind == "glm4_moe") and all(torch.equal(begin[name], end[name]) for name in biases)
    # A load of 1 is the mean; at most all tokens go to one expert, of which each token has two of six.
    for key in LOADS:
        assert len(finished.logged(key)) == NUM_STEPS
    assert all(1 <= mean <= worst <= 3 for mean, worst in zip(finished.logged(LOADS[0]), finished.logged(LOADS[1])))


LAYOUTS = {
    "accumulation 4": (1, dict(per_device_train_batch_size=1, gradient_accumulation_steps=4)),
    "data parallel": (2, dict(per_device_train_batch_size=2)),
    "ulysses, tiles": (2, dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses", tiled_mlp=3)),
    "zigzag ring of 3": (3, dict(sequence_parallel_size=3, sequence_parallel_mode="zigzag-ring")),
    "ring of 4, zero 1": (4, dict(sequence_parallel_size=4, sequence_parallel_mode="ring", zero_stage=1)),
    "zero 2, accumulation 2": (2, dict(per_device_train_batch_size=1, gradient_accumulation_steps=2, zero_stage=2)),
    "zero 3, offload": (4, dict(sequence_parallel_size=2, per_device_train_batch_size=1, gradient_accumulation_steps=2,
                                zero_stage=3, offload_params=True, offload_optimizer=True, offload_activations=True)),
    "no checkpointing": (1, dict(disable_gradient_checkpointing=True)),
}


@pytest.fixture(scope="module")
def one_process(model_folder, short_rows, own_place):
    return run(settings_of(model_folder, short_rows, own_place / "one_process", disable_shuffling=True,
                           moe_aux_loss_coef=0.05, per_device_train_batch_size=4, gradient_accumulation_steps=1,
                           **SHARED))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, one_process, model_folder, short_rows, tmp_path):
    """The auxiliary loss is of the whole batch, in whatever rows and on however many processes."""
    num_ranks, keys = LAYOUTS[layout]
    shared = SHARED | dict(per_device_train_batch_size=4, gradient_accumulation_steps=1, moe_aux_loss_coef=0.05)
    settings = settings_of(model_folder, short_rows, tmp_path / "ours", disable_shuffling=True) | shared | keys
    finished = run(settings, num_ranks)
    for key in ("loss", "grad_norm", "aux_loss"):
        assert relative_difference(finished.logged(key), one_process.logged(key)) < TOLERANCE, key
    for key in LOADS:  # counts: exactly the same
        assert finished.logged(key) == one_process.logged(key), key
    start = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).state_dict()
    mine, theirs = [AutoModelForCausalLM.from_pretrained(r.output_dir, dtype=torch.float32).state_dict()
                    for r in (finished, one_process)]
    assert distance(mine, theirs) < WEIGHTS * distance(start, theirs)


def test_resume(model_folder, short_rows, tmp_path):
    """To the bit, log lines as well."""
    keys = dict(moe_aux_loss_coef=0.05, logging_steps=2, gradient_accumulation_steps=2, **SHARED)
    whole = run(settings_of(model_folder, short_rows, tmp_path / "whole", **keys))
    settings = settings_of(model_folder, short_rows, tmp_path / "parts", **keys) | dict(save_strategy="steps", save_steps=3)
    run(settings)
    parts = run(settings | dict(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"), output_dir=str(
        tmp_path / "rest"), save_strategy="no"))
    for key in ("loss", "grad_norm", "aux_loss", *LOADS):
        assert parts.logged(key) == whole.logged(key), key
    left, right = [load_file(r.output_dir / "model.safetensors") for r in (whole, parts)]
    assert all(torch.equal(left[name], right[name]) for name in left)


def write_expert_adapter(folder, model_folder, targets, r=4, alpha=12):
    """As PEFT wrote it where experts were linear layers of their own (transformers 4): a matrix A and B of each. Beside
    experts other MLPs have none."""
    generator = torch.Generator().manual_seed(5)
    matrices = {}
    for name, weight in load_file(f"{model_folder}/model.safetensors").items():
        linear = name.removesuffix(".weight")
        if linear.rpartition(".")[2] not in targets or (".mlp." in linear and ".experts." not in linear):
            continue
        for which, shape in (("A", (r, weight.shape[1])), ("B", (weight.shape[0], r))):
            key = f"base_model.model.{linear}.lora_{which}.weight"
            matrices[key] = 0.1 * torch.randn(shape, generator=generator)
    folder.mkdir()
    save_file(matrices, folder / "adapter_model.safetensors")
    config = dict(peft_type="LORA", task_type="CAUSAL_LM", r=r, lora_alpha=alpha, lora_dropout=0.0, bias="none",
                  target_modules=sorted(targets), base_model_name_or_path=str(model_folder))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def keep_blocks(model):
    """PEFT stacks gate_proj's and up_proj's adapters into one whose B has their blocks, and zeros beside them, which it
    would train as well: they stay zeros."""
    for name, parameter in model.named_parameters():
        if not name.endswith("experts.base_layer.lora_B.default.weight"):
            continue
        mask = (parameter.detach() != 0).to(parameter.dtype)
        assert mask.mean() == 0.5
        parameter.register_hook(lambda gradient, mask=mask: gradient * mask.to(gradient.dtype))
    return model


EXPERTS = ["gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("model, targets", [
    ("qwen3_moe", ["q_proj", "v_proj"]), ("qwen3_moe", ["down_proj", "k_proj"]), ("qwen3_moe", ["o_proj", *EXPERTS]),
    *((model, ["o_proj", *EXPERTS]) for model in ("glm4_moe", "deepseek_v3", "qwen3_next")),
])
def test_adapters(model, targets, model_folders, short_rows, tmp_path):
    """Where every token goes through some MLPs, too, those have none: PEFT gives them to experts alone."""
    model_folder = model_folders[model]
    start = write_expert_adapter(tmp_path / "start", model_folder, targets)
    shared = SHARED | dict(per_device_train_batch_size=2, gradient_accumulation_steps=1)
    settings = settings_of(model_folder, short_rows, tmp_path / "ours", disable_shuffling=True) | shared
    rows = our_rows(settings, tmp_path)
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start)
    finished = run(settings)

    def prepare(model):
        model.set_experts_implementation("eager")
        return keep_blocks(with_adapter(model, start))

    history, trained = transformers_run(model_folder, rows, tmp_path,
                                        prepare=prepare, **shared)
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in history]) < TOLERANCE, key

    # Our file through PEFT computes what PEFT's own training ended with, and merged it is what we merge.
    ids = rows[0]["input_ids"]
    loaded = with_adapter(load(model_folder), finished.output_dir, is_trainable=False)
    expected, got, untrained = logits_of(trained, ids), logits_of(loaded, ids), logits_of(load(model_folder), ids)
    assert (got - expected).norm() < 1e-3 * (untrained - expected).norm()
    config = tmp_path / "export.json"
    config.write_text(json.dumps(dict(model_name_or_path=model_folder, adapter_name_or_path=str(finished.output_dir),
                                      export_dir=str(tmp_path / "merged"))))
    ran = subprocess.run([PROGRAM, "export", config], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    merged, ours = loaded.merge_and_unload().state_dict(), load(tmp_path / "merged").state_dict()
    for name, value in merged.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keys, says", [
    (dict(lora_target="gate_proj,down_proj"), "need both gate_proj and up_proj or neither"),
    (dict(lora_target="all", lora_dropout=0.1), "are not supported with lora_dropout"),
    (dict(lora_target="all", use_rslora=True), "are not supported with use_rslora"),
    (dict(lora_target="gate_proj", model="glm4_moe"), "need both gate_proj and up_proj or neither"),
])
def test_adapters_that_peft_cannot_have(keys, says, model_folders, short_rows, tmp_path):
    keys = dict(keys)
    settings = settings_of(model_folders[keys.pop("model", "qwen3_moe")], short_rows, tmp_path / "ours", finetuning_type="lora", **keys)
    finished = Running(settings).wait()
    assert finished.status == 1 and says in finished.text


@pytest.mark.parametrize("model, says, adapted", [
    ("glm4_moe", "are on the experts that routers choose alone", ".experts."),
    ("qwen3_5_moe", "are on shared experts alone", ".shared_expert."),
])
def test_adapters_of_all_linear_layers(model, says, adapted, own_place, short_rows, tmp_path):
    """The run says which MLPs have none, and PEFT loads what is saved: each matrix has its place."""
    folder = made_once(own_place / model, lambda folder: write_model(folder, model))
    settings = settings_of(folder, short_rows, tmp_path / "ours", finetuning_type="lora", lora_target="all", max_steps=1)
    finished = Running(settings).wait()
    assert finished.status == 0 and says in finished.text, finished.text
    saved = load_file(finished.output_dir / "adapter_model.safetensors")
    in_mlps = [name for name in saved if ".mlp." in name and "shared_expert_gate" not in name]
    assert in_mlps and all(adapted in name for name in in_mlps)
    loaded = with_adapter(load(folder), finished.output_dir, is_trainable=False)
    squares = sum(p.double().square().sum() for name, p in loaded.named_parameters() if "lora_" in name)
    assert squares.item() == pytest.approx(sum(m.double().square().sum().item() for m in saved.values()), rel=1e-9)


@pytest.mark.parametrize("kind, says", [("llama", "LlamaForCausalLM has no experts"),
                                        ("glm4_moe", "routers of Glm4MoeForCausalLM have a sigmoid")])
def test_no_such_auxiliary_loss(kind, says, models, model_folders, short_rows, tmp_path):
    folder = (models | model_folders)[kind]
    finished = Running(settings_of(folder, short_rows, tmp_path / "ours", moe_aux_loss_coef=0.1)).wait()
    assert finished.status == 1 and says in finished.text


def test_dpo(model_folder, own_place, tmp_path):
    from trl import DPOConfig, DPOTrainer

    preferences = write_preference_data(own_place / "pairs_for_experts")
    shared = SHARED | dict(per_device_train_batch_size=2, gradient_accumulation_steps=1)
    settings = settings_of(model_folder, preferences, tmp_path / "ours", stage="dpo", dataset="pairs",
                           disable_shuffling=True, pref_beta=0.1) | shared
    # TRL adds the auxiliary loss of both answers' tokens, as config.json weighs it.
    finished = run(settings | dict(moe_aux_loss_coef=0.001))
    columns = pair_columns(encoded_rows(settings, tmp_path))
    policy, reference = [load(model_folder, experts_implementation="eager") for _ in range(2)]
    theirs = trl_run(DPOTrainer, DPOConfig, policy, columns, tmp_path, ref_model=reference, beta=0.1, **shared)
    tolerance = of_training(NUM_STEPS, SHARED["learning_rate"])
    for key in ("loss", "grad_norm", "aux_loss"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in theirs]) < tolerance, key
    allowed = of_log_ratio(finished.logged("logps/chosen"))
    for key in ("rewards/margins", "logps/chosen", "logps/rejected"):
        assert finished.logged(key) == pytest.approx([entry[key] for entry in theirs], rel=tolerance, abs=allowed), key
