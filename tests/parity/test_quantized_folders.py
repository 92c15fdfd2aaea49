"""Folders in 4 bits, GPTQ's and AWQ's, beside the same numbers by GPTQModel and AutoAWQ, under transformers and PEFT."""

import json
import shutil
import subprocess

import pytest
import torch
from conftest import BUILD, PROGRAM, add_dataset, relative_difference, settings_of, write_model
from grouped_bits import in_four_bits
from pairs import load, write_preference_data
from quantizers import plain_copy
from safetensors.torch import load_file, save_file
from shared import made_once
from test_lora import (ALL, SHARED, assert_same_adapters, assert_same_training, export, run, settings_for, with_adapter,
                       write_adapter)
from test_trainer import our_rows, transformers_run
from tolerance import TOLERANCE

FORMATS = {
    "gptq": ("qwen2", dict(method="gptq")),  # the last group is shorter
    "gptq in the order of activations": ("llama", dict(method="gptq", symmetric=False, desc_act=True)),
    "gptq_v2, one group, fused": ("phi3", dict(method="gptq", group_size=-1, symmetric=False, layout="gptq_v2")),
    "gptq of some": ("llama", dict(method="gptq", kept=["self_attn", "up_proj"],
                                   modules_in_block_to_quantize=[["mlp.gate_proj"], ["mlp.down_proj"]])),
    "awq": ("qwen2", dict(method="awq", group_size=16, symmetric=False)),
    "awq, fused, less some": ("phi3", dict(method="awq", symmetric=False, kept=["o_proj", "layers.1.mlp"])),
}


@pytest.fixture(scope="module")
def folders(place):
    """A folder in 4 bits, and one of the same numbers."""
    def make(name):
        kind, keys = FORMATS[name]

        def fill(folder):
            write_model(folder / "packed", kind)
            in_four_bits(folder / "packed", **keys)
            plain_copy(folder / "packed", folder / "plain")

        folder = made_once(place / "in 4 bits" / name.replace(" ", "-"), fill)
        return folder / "packed", folder / "plain"

    return make


@pytest.fixture(scope="module")
def preferences(place):
    return str(made_once(place / "for_adapters", write_preference_data))


@pytest.mark.parametrize("name", FORMATS)
def test_numbers(name, folders, tmp_path):
    """To the bit: read as plain numbers, and unpacked in use by the operators of GPUs, in fp32 and bf16."""
    packed, plain = folders(name)
    subprocess.run([BUILD / "four_bits_probe", packed, tmp_path / "result.safetensors"], check=True)
    ours, whole = load_file(tmp_path / "result.safetensors"), load_file(plain / "model.safetensors")
    in_codes = {key.removesuffix(".qweight") + ".weight" for key in load_file(packed / "model.safetensors") if "qweight" in key}
    assert in_codes and {key for key in ours if not key.endswith("bf16")} == in_codes
    for key in in_codes:
        assert ours[key].equal(whole[key]), key
        assert ours[f"{key}.bf16"].equal(whole[key].bfloat16()), key


TRAINED = {"gptq in the order of activations": dict(), "awq, fused, less some": dict(target_modules=["qkv_proj", "down_proj"])}


@pytest.mark.parametrize("name", TRAINED)
def test_training(name, folders, preferences, tmp_path):
    packed, plain = folders(name)
    start = write_adapter(plain, tmp_path / "start", init_lora_weights=False, **TRAINED[name])
    settings = settings_for(packed, preferences, tmp_path / "ours", finetuning_type="lora", adapter_name_or_path=start)
    finished = run(settings)
    history, trained = transformers_run(plain, our_rows(settings, tmp_path), tmp_path,
                                        prepare=lambda model: with_adapter(model, start), **SHARED)
    assert_same_training(finished, history)
    assert_same_adapters(finished.output_dir, trained, start, tmp_path)
    # The packed bytes are divided.
    many = run(settings | dict(zero_stage=3, sequence_parallel_size=2, output_dir=str(tmp_path / "many")), 2)
    assert relative_difference(many.logged("loss"), finished.logged("loss")) < TOLERANCE

    # The adapter merges into the dequantized weights, as with the plain folder.
    keys = dict(adapter_name_or_path=str(finished.output_dir))
    export(keys | dict(model_name_or_path=str(packed), export_dir=str(tmp_path / "merged")), tmp_path)
    export(keys | dict(model_name_or_path=str(plain), export_dir=str(tmp_path / "expected")), tmp_path)
    merged, expected = [load_file(tmp_path / name / "model.safetensors") for name in ("merged", "expected")]
    assert merged.keys() == expected.keys() and all(merged[key].equal(expected[key]) for key in expected)
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())


def test_magnitudes(folders, data, tmp_path):
    """DoRA begins with the lengths of the rows as the folder has them."""
    packed, plain = folders("gptq")
    finished = run(settings_of(packed, data, tmp_path / "out", finetuning_type="lora", use_dora=True, max_steps=1,
                               learning_rate=1e-9))
    weights = load_file(plain / "model.safetensors")
    parameters = load_file(finished.output_dir / "adapter_model.safetensors")
    magnitudes = {name: value for name, value in parameters.items() if name.endswith("magnitude_vector")}
    assert magnitudes
    for name, value in magnitudes.items():
        weight = weights[name.removeprefix("base_model.model.").replace("lora_magnitude_vector", "weight")]
        assert value.tolist() == pytest.approx(weight.norm(dim=1).tolist(), rel=1e-6)


def test_rollouts(folders, tmp_path):
    """The model itself answers, on two ranks that divide the packed bytes: with the weights that are trained on."""
    packed, plain = folders("awq")
    start = write_adapter(plain, tmp_path / "start", init_lora_weights=False)
    add_dataset(tmp_path, "questions", [{"instruction": f"What is {i}?", "output": str(i)} for i in range(4)])
    settings = settings_of(packed, tmp_path, tmp_path / "out", stage="grpo", dataset="questions", rollout="self",
                           rewards="length", num_generations=2, max_completion_length=8, cutoff_len=96, beta=0.02,
                           per_device_train_batch_size=2, gradient_accumulation_steps=1, max_steps=2, zero_stage=3,
                           sequence_parallel_size=2, finetuning_type="lora", adapter_name_or_path=start)
    finished = run(settings, 2)
    assert len(finished.logged("loss")) == 2 and all(kl > 0 for kl in finished.logged("kl"))
    assert max(finished.logged("sampling/logp_difference")) < 1e-4


def test_folders_of_older_versions(folders, data, tmp_path):
    """Keys in a file of their own, and biases of zeros that the model does not have: a line names them."""
    packed, plain = folders("gptq in the order of activations")
    older = shutil.copytree(packed, tmp_path / "older")
    config = json.loads((older / "config.json").read_text())
    keys = config.pop("quantization_config")
    (older / "config.json").write_text(json.dumps(config))
    (older / "quantize_config.json").write_text(json.dumps({key: keys[key] for key in keys if key != "quant_method"}))
    tensors = load_file(older / "model.safetensors")
    for name in list(tensors):
        if name.endswith(".scales"):
            tensors[name.replace("scales", "bias")] = torch.zeros(tensors[name].shape[1], dtype=torch.float16)
    save_file(tensors, older / "model.safetensors", {"format": "pt"})
    settings = dict(finetuning_type="lora", max_steps=1)
    one, other = [run(settings_of(folder, data, tmp_path / name, **settings)) for name, folder in
                  (("new", packed), ("old", older))]
    assert one.logged("loss") == other.logged("loss")
    assert "14 tensors of the files are not read: biases of zeros" in other.text and "biases" not in one.text


def test_refused_by_name(folders, data, place, tmp_path):
    packed, _ = folders("gptq")
    awq, _ = folders("awq")
    changed = shutil.copytree(packed, tmp_path / "changed")
    whole = json.loads((changed / "config.json").read_text())
    tensors = load_file(changed / "model.safetensors")

    def error_of(folder=changed, quantization=None, weights=None, **keys):
        (changed / "config.json").write_text(json.dumps(
            whole | dict(quantization_config=whole["quantization_config"] | (quantization or {}))))
        save_file({k: v for k, v in (tensors | (weights or {})).items() if v is not None}, changed / "model.safetensors",
                  {"format": "pt"})
        settings = settings_of(folder, data, tmp_path / "out", finetuning_type="lora")
        (tmp_path / "config.json").write_text(json.dumps(settings | keys))
        ran = subprocess.run([PROGRAM, "train", tmp_path / "config.json"], capture_output=True, text=True)
        assert ran.returncode == 1 and ran.stderr.count("error: ") == 1, ran.stdout + ran.stderr
        assert not (tmp_path / "out").exists()
        return ran.stderr

    for kind in ("full", "freeze"):
        assert "in 4 bits (GPTQ) is for finetuning_type: lora" in error_of(finetuning_type=kind)
        assert "in 4 bits (AWQ) is for finetuning_type: lora" in error_of(awq, finetuning_type=kind)
    assert "is quantized already (GPTQ). Remove the key" in error_of(quantization_bit=4)
    assert "pissa_init takes a part out of the matrices" in error_of(pissa_init=True)
    assert "offload_params is not for" in error_of(offload_params=True, zero_stage=3)
    assert "takes one adapter in adapter_name_or_path" in error_of(adapter_name_or_path="one,two")
    for bits in (2, 3, 8):
        assert f"bits: {bits} is not supported for GPTQ; 4 is" in error_of(quantization=dict(bits=bits))
    assert "the layout marlin of GPTQ is not supported; gptq or gptq_v2 is" in error_of(
        quantization=dict(checkpoint_format="marlin"))
    assert 'dynamic: {"a":{"bits":8}} is not supported' in error_of(quantization=dict(dynamic=dict(a=dict(bits=8))))
    assert "lm_head: true is not supported for GPTQ; false is" in error_of(quantization=dict(lm_head=True))
    assert "rotation is not known for GPTQ" in error_of(quantization=dict(rotation="hadamard"))
    assert "group_size 0 is not -1" in error_of(quantization=dict(group_size=0))
    for method in ("aqlm", "hqq", "bitsandbytes", "compressed-tensors", "eetq", "quanto", "torchao"):
        assert f"has quantization_config (quant_method {method})" in error_of(quantization=dict(quant_method=method))
    linear = "model.layers.0.mlp.down_proj"
    assert f"missing tensor ({linear}.qzeros)" in error_of(weights={f"{linear}.qzeros": None})
    assert f"unexpected tensor ({linear}.bias)" in error_of(weights={f"{linear}.bias": torch.ones(112)})
    assert "qzeros has shape [4, 14] but config.json asks for [2, 14]" in error_of(quantization=dict(group_size=64))
    assert "codes are stored as words (I32)" in error_of(weights={f"{linear}.qweight": tensors[f"{linear}.qweight"].short()})
    damaged = tensors[f"{linear}.g_idx"].clone()
    damaged[3] = 5
    assert "has column 3 in group 5, but 5 groups" in error_of(weights={f"{linear}.g_idx": damaged})
    (changed / "quantize_config.json").write_text("[]")
    assert "quantize_config.json: a JSON object is expected" in error_of()
    experts = made_once(place / "qwen3_moe", lambda folder: write_model(folder, folder.name))
    experts = shutil.copytree(experts, tmp_path / "experts")
    config = json.loads((experts / "config.json").read_text())
    (experts / "config.json").write_text(json.dumps(config | dict(quantization_config=dict(quant_method="awq", bits=4))))
    assert "AWQ is not read for mixtures of experts" in error_of(experts)
