"""quantization_bit: 4 beside bitsandbytes, to the bit, and beside PEFT's QLoRA: training, through files, and memory."""

import json
import subprocess

import pytest
import torch
from conftest import BUILD, PROGRAM, relative_difference, settings_of, write_model
from pairs import encoded_rows, load, pair_columns, trl_run, write_preference_data
from safetensors.torch import load_file, save_file
from shared import made_once
from test_lora import (ALL, NUM_STEPS, SHARED, assert_same_adapters, assert_same_training, export, run, settings_for, with_adapter,
                       write_adapter)
from test_trainer import our_rows, transformers_run
from tolerance import TOLERANCE, of_log_ratio, of_training


@pytest.fixture(scope="session")
def models(models, place):
    """More: files with several projections in one tensor, and a head of its own."""
    return models | {kind: str(made_once(place / kind, lambda folder: write_model(folder, folder.name))) for kind in ("phi3",)}


@pytest.fixture(scope="module")
def preferences(place):
    return str(made_once(place / "for_adapters", write_preference_data))


def matrices():
    """Whole blocks and a shorter one, zeros, an odd number of elements, scales below their mean and far above."""
    torch.manual_seed(0)
    wide = torch.randn(300, 256) * torch.randn(300, 1).exp()
    some = {"plain": torch.randn(96, 200), "wide": wide, "odd": torch.randn(7, 13), "small": torch.randn(2, 5),
            "zeros": wide.clone(), "tiny": 1e-30 * torch.randn(3, 64), "many": 0.02 * torch.randn(1024, 512),
            "apart": torch.cat([torch.randn(64, 64), 1e-3 * torch.randn(3, 64)])}
    some["zeros"][5:90] = 0
    return some


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_as_bitsandbytes(dtype, kind, double, tmp_path):
    from bitsandbytes import functional

    torch.set_num_threads(1)
    values = {name: matrix.to(dtype) for name, matrix in matrices().items()}
    save_file(values, tmp_path / "values.safetensors")
    subprocess.run([BUILD / "four_bits_probe", tmp_path / "values.safetensors", tmp_path / "result.safetensors", kind,
                    "double" if double else "single"], check=True)
    ours = load_file(tmp_path / "result.safetensors")
    for name, matrix in values.items():
        codes, state = functional.quantize_4bit(matrix, quant_type=kind, compress_statistics=double)
        assert ours[f"{name}.codes"].equal(codes.flatten()), name
        assert ours[f"{name}.scales"].equal(state.absmax), name
        if double:
            assert ours[f"{name}.group_scales"].equal(state.state2.absmax), name
            assert ours[f"{name}.mean"].equal(state.offset.view(1)), name
        unpacked = functional.dequantize_4bit(codes, state)
        assert ours[name].equal(unpacked) and ours[f"{name}.by_operators"].equal(unpacked), name


def quantized(folder, **keys):
    """transformers' 4-bit model: its own choice of layers. bitsandbytes multiplies in fp32 at the most."""
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(**(dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                        bnb_4bit_compute_dtype=torch.float32) | keys))
    return load(folder, quantization_config=config, device_map="cpu")


def dequantized(folder, **keys):
    """Plain numbers, which trainers compute with in double: the same layers' weights, as bitsandbytes rounds them."""
    from bitsandbytes import functional, nn

    model = load(folder)
    for name, module in quantized(folder, **keys).named_modules():
        if isinstance(module, nn.Linear4bit):
            weight = model.get_submodule(name).weight.data
            # As one row: on CPUs bitsandbytes unpacks some rows that are no multiple of a block (112 numbers) wrongly.
            codes, state = functional.quantize_4bit(weight.flatten(), quant_type=keys.get("bnb_4bit_quant_type", "nf4"),
                                                    compress_statistics=keys.get("bnb_4bit_use_double_quant", True))
            weight.copy_(functional.dequantize_4bit(codes, state).view(weight.shape))
    return model


QLORA = {
    "qwen2": dict(),  # a tied head, biases
    "llama": dict(quantization_type="fp4", double_quantization=False),  # a head of its own
    "phi3": dict(),  # several projections in one tensor, with one adapter
}
TARGETS = {"phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}


@pytest.mark.parametrize("kind", QLORA)
def test_training(kind, models, preferences, tmp_path):
    base, keys = models[kind], QLORA[kind]
    start = write_adapter(base, tmp_path / "start", target_modules=TARGETS.get(kind, ALL), init_lora_weights=False)
    settings = settings_for(base, preferences, tmp_path / "ours")
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start, quantization_bit=4) | keys
    finished = run(settings)
    rows = our_rows(settings, tmp_path)
    theirs = dict(bnb_4bit_quant_type=keys.get("quantization_type", "nf4"),
                  bnb_4bit_use_double_quant=keys.get("double_quantization", True))
    history, trained = transformers_run(base, rows, tmp_path, prepare=lambda _: with_adapter(dequantized(base, **theirs), start),
                                        **SHARED)
    assert_same_training(finished, history)
    assert_same_adapters(finished.output_dir, trained, start, tmp_path)
    # Not by accident: the model as it is trains otherwise.
    plain = run(settings | dict(quantization_bit=None, quantization_type="nf4", double_quantization=True,
                                output_dir=str(tmp_path / "plain")))
    assert relative_difference(finished.logged("loss"), plain.logged("loss")) > 100 * TOLERANCE


def test_through_files(models, preferences, tmp_path):
    """A new adapter, trained on 4-bit weights: PEFT loads it beside transformers' 4-bit model, which then computes what the
    training ended with; export merges it into the weights as they are."""
    base = models["qwen2"]
    keys = dict(finetuning_type="lora", quantization_bit=4, learning_rate=3e-3, eval_dataset="chats", do_eval=True)
    settings = settings_for(base, preferences, tmp_path / "ours", **keys)
    finished = run(settings)
    rows = our_rows(settings, tmp_path)
    loaded = with_adapter(dequantized(base), finished.output_dir, is_trainable=False).to(torch.float64).eval()
    total = count = 0
    for row in rows:
        with torch.no_grad():
            logits = loaded(torch.tensor([row["input_ids"]])).logits[0, :-1]
        labels = torch.tensor(row["labels"][1:])
        total += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
        count += (labels != -100).sum().item()
    ours = json.loads((finished.output_dir / "eval_results.json").read_text())["eval_loss"]
    assert ours == pytest.approx(total / count, rel=TOLERANCE)

    merge = dict(model_name_or_path=base, adapter_name_or_path=str(finished.output_dir), export_dir=str(tmp_path / "merged"))
    export(merge, tmp_path)
    merged, before = load(tmp_path / "merged").state_dict(), load(base).state_dict()
    adapted = with_adapter(load(base), finished.output_dir, is_trainable=False).merge_and_unload().state_dict()
    for name, tensor in adapted.items():
        torch.testing.assert_close(merged[name], tensor, rtol=1e-6, atol=1e-6)
    assert not merged["model.layers.0.mlp.up_proj.weight"].equal(before["model.layers.0.mlp.up_proj.weight"])


def test_dpo(models, preferences, tmp_path):
    """The reference is the 4-bit model without its adapter, which here is not zero at first; TRL gets both models."""
    from trl import DPOConfig, DPOTrainer

    base = models["qwen2"]
    start = write_adapter(base, tmp_path / "start", init_lora_weights=False)
    settings = settings_for(base, preferences, tmp_path / "ours", stage="dpo", dataset="pairs", pref_beta=0.02,
                            finetuning_type="lora", adapter_name_or_path=start, quantization_bit=4)
    finished = run(settings)
    columns = pair_columns(encoded_rows(settings, tmp_path))
    theirs = trl_run(DPOTrainer, DPOConfig, with_adapter(dequantized(base), start), columns, tmp_path,
                     ref_model=dequantized(base), beta=0.02, **SHARED)
    tolerance = of_training(NUM_STEPS, SHARED["learning_rate"])
    assert_same_training(finished, theirs, tolerance)
    allowed = of_log_ratio(finished.logged("logps/chosen"))
    for key in ("rewards/chosen", "rewards/margins", "logps/chosen", "logps/rejected"):
        assert finished.logged(key) == pytest.approx([entry[key] for entry in theirs], rel=tolerance, abs=allowed), key
    assert abs(finished.logged("rewards/margins")[0]) > 0.01


@pytest.mark.parametrize("keys", [dict(stage="kto", dataset="verdicts"), dict(stage="rm", dataset="pairs")],
                         ids=lambda keys: keys["stage"])
def test_stages(keys, models, preferences, tmp_path):
    """On two ranks that divide rows and packed bytes as on one."""
    base = models["qwen2"]
    start = write_adapter(base, tmp_path / "start", init_lora_weights=False)
    settings = settings_for(base, preferences, tmp_path / "one", finetuning_type="lora", adapter_name_or_path=start,
                            quantization_bit=4, max_steps=4, **keys)
    one = run(settings)
    many = run(settings | dict(output_dir=str(tmp_path / "many"), sequence_parallel_size=2, zero_stage=3), 2)
    for key in ("loss", "grad_norm", "rewards/chosen"):
        assert many.logged(key) == pytest.approx(one.logged(key), rel=TOLERANCE, abs=TOLERANCE), key
    assert len(set(one.logged("loss"))) == 4


def test_refused_by_name(models, data, place, tmp_path):
    experts = str(made_once(place / "qwen3_moe", lambda folder: write_model(folder, folder.name)))
    lora = settings_of(models["qwen2"], data, tmp_path / "out", finetuning_type="lora", quantization_bit=4)

    def error_of(command="train", **keys):
        (tmp_path / "config.json").write_text(json.dumps(lora | keys))
        ran = subprocess.run([PROGRAM, command, tmp_path / "config.json"], capture_output=True, text=True)
        assert ran.returncode == 1 and ran.stderr.count("error: ") == 1, ran.stdout + ran.stderr
        assert not (tmp_path / "out").exists()
        return ran.stderr

    for kind in ("full", "freeze"):
        assert "quantization_bit: 4 is for finetuning_type: lora" in error_of(finetuning_type=kind)
    assert "quantization_bit: 3 is known but not supported; 4 and 8 are" in error_of(quantization_bit=3)
    assert "quantization_method: hqq is known but not supported" in error_of(quantization_method="hqq")
    assert "quantization_type and double_quantization are for quantization_bit: 4" in error_of(
        quantization_bit=None, double_quantization=False)
    assert "takes one adapter in adapter_name_or_path" in error_of(adapter_name_or_path="one,two")
    assert "pissa_init takes a part out of the matrices" in error_of(pissa_init=True)
    assert "offload_params is not for quantization_bit: 4" in error_of(offload_params=True, zero_stage=3)
    assert "the model has experts, which are not held in 4 bits here" in error_of(model_name_or_path=experts)
    merging = dict(model_name_or_path=models["qwen2"], quantization_bit=4, export_dir=str(tmp_path / "merged"))
    lora = merging
    assert "quantization_bit is for training" in error_of("export")
