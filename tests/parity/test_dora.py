"""DoRA's magnitudes and modules trained whole (modules_to_save) beside PEFT's, both ways through files."""

import json
import subprocess

import pytest
import torch
from conftest import PROGRAM, run_to_end, write_model
from pairs import load
from safetensors.torch import load_file, save_file
from shared import made_once
from test_four_bits import dequantized
from test_lora import (  # noqa: F401 (fixtures)
    ALL, SHARED, TOLERANCE, assert_same_adapters, assert_same_training, export, logits_of, models, preferences,
    settings_for, with_adapter, write_adapter)
from test_trainer import our_rows, transformers_run

WHOLE = ["embed_tokens", "lm_head", "norm"]
# kind of model, processes, of PEFT's config, of ours
WAYS = {
    "dora": ("qwen2", 1, dict(use_dora=True, use_rslora=True, lora_alpha=4), dict()),
    "dora of fused layers, modules whole": (
        "phi3", 2, dict(use_dora=True, modules_to_save=WHOLE, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
        dict(sequence_parallel_mode="ulysses", zero_stage=3)),
    "modules whole": ("llama", 3, dict(modules_to_save=WHOLE, target_modules=["v_proj"]),
                      dict(sequence_parallel_mode="zigzag-ring", zero_stage=2, offload_optimizer=True)),
    "dora in 4 bits": ("qwen2", 2, dict(use_dora=True), dict(quantization_bit=4, sequence_parallel_mode="async-ulysses")),
}


def other_lengths(folder):
    """The adapter with magnitudes that are not the lengths of its rows."""
    path = f"{folder}/adapter_model.safetensors"
    parameters = load_file(path)
    for name, value in parameters.items():
        if name.endswith("lora_magnitude_vector"):
            value *= 1 + torch.arange(len(value)) % 7 / 20
    save_file(parameters, path, {"format": "pt"})
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_training(way, models, preferences, tmp_path):  # noqa: F811
    kind, num_ranks, adapter, keys = WAYS[way]
    base, packed = models[kind], "quantization_bit" in keys
    start = other_lengths(write_adapter(base, tmp_path / "start", init_lora_weights=False, **adapter))
    settings = settings_for(base, preferences, tmp_path / "ours", sequence_parallel_size=num_ranks, **keys)
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start)
    finished = run_to_end(settings, num_ranks)
    rows = our_rows(settings, tmp_path)
    history, trained = transformers_run(
        base, rows, tmp_path, prepare=lambda model: with_adapter(dequantized(base) if packed else model, start), **SHARED)
    assert_same_training(finished, history)
    assert_same_adapters(finished.output_dir, trained, start, tmp_path)

    ids = rows[0]["input_ids"]
    loaded = with_adapter(dequantized(base) if packed else load(base), finished.output_dir, is_trainable=False)
    expected, got, untrained = logits_of(trained, ids), logits_of(loaded, ids), logits_of(load(base), ids)
    assert (got - expected).norm() < 0.01 * (untrained - expected).norm()

    # Merged: as PEFT merges the same file.
    loaded = with_adapter(load(base), finished.output_dir, is_trainable=False)
    export(dict(model_name_or_path=base, adapter_name_or_path=str(finished.output_dir)), tmp_path,
           export_dir=str(tmp_path / "merged"))
    ours, before = load(tmp_path / "merged").state_dict(), load(base).state_dict()
    merged = loaded.merge_and_unload().state_dict()
    assert ours.keys() == merged.keys()
    changed = set()
    for key, value in merged.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-6, atol=1e-6)
        if not ours[key].equal(before[key]):
            changed.add(key.split(".")[-2])
    norms = {"norm", "input_layernorm", "post_attention_layernorm", "embed_tokens", "lm_head"}
    assert changed == set(adapter.get("target_modules", ALL)) | (norms if "modules_to_save" in adapter else set())


def test_a_new_adapter(models, preferences, tmp_path):  # noqa: F811
    """From the keys alone: the first loss is the model's own, the magnitudes are the lengths of its rows, and PEFT's config is
    the same."""
    base, keys = models["phi3"], dict(finetuning_type="lora", lora_rank=4, weight_decay=0.0)
    whole = dict(additional_target="lm_head,post_attention_layernorm", use_dora=True)
    plain, dora = (run_to_end(settings_for(base, preferences, tmp_path / name, **keys, **more, max_steps=1, learning_rate=1e-9))
                   for name, more in (("plain", {}), ("dora", whole)))
    assert dora.logged("loss")[0] == pytest.approx(plain.logged("loss")[0], rel=TOLERANCE)
    weights = load(base).state_dict()
    parameters = load_file(dora.output_dir / "adapter_model.safetensors")
    magnitudes = {name: value for name, value in parameters.items() if name.endswith("magnitude_vector")}
    assert len(magnitudes) == 4 * load(base).config.num_hidden_layers
    for name, value in magnitudes.items():
        weight = weights[name.removeprefix("base_model.model.").replace("lora_magnitude_vector", "weight")]
        assert value.tolist() == pytest.approx(weight.norm(dim=1).tolist(), rel=1e-6)
    config = json.loads((dora.output_dir / "adapter_config.json").read_text())
    assert config["use_dora"] and config["modules_to_save"] == ["lm_head", "post_attention_layernorm"]


def test_refused_by_name(models, preferences, place, tmp_path):  # noqa: F811
    experts = str(made_once(place / "qwen3_moe", lambda folder: write_model(folder, folder.name)))
    lora = settings_for(models["llama"], preferences, tmp_path / "out", finetuning_type="lora")

    def error_of(**keys):
        (tmp_path / "config.json").write_text(json.dumps(lora | keys))
        ran = subprocess.run([PROGRAM, "train", tmp_path / "config.json"], capture_output=True, text=True)
        assert ran.returncode == 1 and ran.stderr.count("error: ") == 1, ran.stdout + ran.stderr
        return ran.stderr

    assert "v_proj names model.layers.0.self_attn.v_proj; an embedding" in error_of(additional_target="v_proj")
    assert "no module whose name ends in score" in error_of(additional_target="norm,score")
    assert "would be the reference; give ref_model" in error_of(additional_target="norm", stage="dpo", dataset="pairs")
    for key in (dict(additional_target="norm"), dict(use_dora=True)):
        assert "remove one of them" in error_of(**key, pissa_init=True)
        assert "for finetuning_type: lora" in error_of(**key, finetuning_type="full")
    assert "adapters of experts are not supported with use_dora" in error_of(model_name_or_path=experts, use_dora=True)
    start = write_adapter(models["llama"], tmp_path / "start", modules_to_save=["norm"])
    assert "would be the reference. Give ref_model" in error_of(adapter_name_or_path=start, stage="dpo", dataset="pairs")
    assert "use_dora: true is given, but the adapter" in error_of(adapter_name_or_path=start, use_dora=True)
    assert "additional_target: lm_head is given, but the adapter" in error_of(
        adapter_name_or_path=start, additional_target="lm_head")
