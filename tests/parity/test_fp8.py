"""DeepSeek-V3's folders in fp8: the model is that of the same weights as plain numbers, and is saved as such."""

import json

import pytest
import torch
from conftest import Running, relative_difference, run_to_end, settings_of, write_dataset, write_model
from fp8 import in_fp8
from safetensors.torch import load_file, save_file
from shared import made_once
from test_models import make_row, probe, reference_logits, relative_error
from tolerance import ADAM_EPSILON, TOLERANCE
from transformers import AutoModelForCausalLM

BLOCKS = {"blocks as published": (128, 128), "other blocks": (24, 40)}
SHARED = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-3, adam_epsilon=ADAM_EPSILON)


@pytest.fixture(scope="module")
def short_rows(place):
    return str(made_once(place / "for_latents", lambda folder: write_dataset(folder, shortest=4, longest=20)))


def folders(tmp_path, block, dtype="float32"):
    """A folder in fp8, of matrices that blocks do not fill, and one of the same numbers."""
    def write(name):
        return write_model(tmp_path / name, "deepseek_v3", dtype=dtype, intermediate_size=200)

    quantized, plain = write("quantized"), write("plain")
    numbers = in_fp8(quantized, block)
    assert any(size % of_block for x in numbers.values() for size, of_block in zip(x.shape, block))
    assert any(size > of_block for x in numbers.values() for size, of_block in zip(x.shape, block))
    tensors = load_file(plain / "model.safetensors")
    save_file({name: numbers.get(name, x.float()) for name, x in tensors.items()}, plain / "model.safetensors",
              {"format": "pt"})
    return quantized, plain, numbers


def run(settings, num_ranks=1):
    return run_to_end(settings, num_ranks)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_logits(blocks, tmp_path):
    quantized, plain, numbers = folders(tmp_path, BLOCKS[blocks])
    documents = [17, 1, 23]
    tokens, labels = make_row(300, documents)
    ours = probe(quantized, tmp_path, tokens, labels, documents, ["logits"], save_to=str(tmp_path / "copy"))["logits"]
    theirs = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    with torch.no_grad():
        assert relative_error(ours, reference_logits(theirs, tokens, documents)) < 1e-5
    saved = load_file(tmp_path / "copy" / "model.safetensors")
    assert not any(name.endswith("_scale_inv") for name in saved)
    for name, expected in numbers.items():
        assert torch.equal(saved[name], expected), name


def test_training(short_rows, tmp_path):
    """On two ranks with ZeRO 3 as on one of plain numbers; bf16 is saved, without quantization_config."""
    quantized, plain, numbers = folders(tmp_path, (128, 128))
    settings = SHARED | dict(max_steps=3)
    alone = run(settings_of(plain, short_rows, tmp_path / "alone") | settings)
    many = run(settings_of(quantized, short_rows, tmp_path / "many", zero_stage=3, sequence_parallel_size=2,
                           sequence_parallel_mode="ring") | settings, 2)
    for key in ("loss", "grad_norm"):
        assert relative_difference(many.logged(key), alone.logged(key)) < TOLERANCE, key
    kept = run(settings_of(quantized, short_rows, tmp_path / "kept", bf16=True) | SHARED |
               dict(max_steps=1, learning_rate=0.0))
    assert "quantization_config" not in json.loads((kept.output_dir / "config.json").read_text())
    saved = AutoModelForCausalLM.from_pretrained(kept.output_dir)
    assert saved.dtype == torch.bfloat16
    theirs = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).state_dict()
    for name, value in saved.state_dict().items():
        assert torch.equal(value, theirs[name].to(value.dtype)), name  # the bias of a router stays fp32


def test_folders_that_do_not_fit(short_rows, tmp_path):
    quantized, _, numbers = folders(tmp_path, (128, 128))
    config = json.loads((quantized / "config.json").read_text())

    def refusal(tensors=None, **keys):
        changed = dict(config, quantization_config=config["quantization_config"] | keys)
        (quantized / "config.json").write_text(json.dumps(changed))
        whole = load_file(quantized / "model.safetensors")
        if tensors:
            save_file({k: v for k, v in (whole | tensors).items() if v is not None}, quantized / "model.safetensors",
                      {"format": "pt"})
        finished = Running(settings_of(quantized, short_rows, tmp_path / "ours")).wait()
        save_file(whole, quantized / "model.safetensors", {"format": "pt"})
        assert finished.status == 1
        return finished.text

    name = "model.layers.0.mlp.down_proj.weight"
    assert "fmt e5m2 is not supported; e4m3 is" in refusal(fmt="e5m2")
    assert "weight_block_size [128] is not two numbers" in refusal(weight_block_size=[128])
    assert "weight_block_size [0, 128] is not two numbers" in refusal(weight_block_size=[0, 128])
    assert "_scale_inv has shape [" in refusal(weight_block_size=[64, 64])
    assert f"{name} holds F8_E4M3 numbers; quantized checkpoints cannot" in refusal({name + "_scale_inv": None})
    assert f"{name} holds F32 numbers, but its scales {name}_scale_inv are those of an fp8 tensor" in refusal({name: numbers[name]})
    assert "(quant_method hqq)" in refusal(quant_method="hqq")
