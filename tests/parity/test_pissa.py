"""PiSSA beside PEFT's, and its conversion beside LLaMA-Factory's callback."""

import logging
import os
import shutil
import types

import llamafactory_data
import pytest
import torch
import transformers
from conftest import run_to_end
from pairs import load
from safetensors.torch import load_file
from test_lora import (  # noqa: F401 (fixtures)
    SHARED, WEIGHTS, assert_same_training, distance, logits_of, models, preferences, settings_for, with_adapter)
from test_trainer import our_rows, transformers_run

KEYS = dict(finetuning_type="lora", lora_rank=4, lora_alpha=12, pissa_init=True)
WAYS = {"qwen2": (1, dict()),
        "phi3": (2, dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses", zero_stage=3))}


def products(folder):
    """B A of each layer of an adapter's file."""
    matrices = load_file(folder / "adapter_model.safetensors")
    return {name.removesuffix(".lora_A.weight"): matrices[name.replace("lora_A", "lora_B")].double() @ a.double()
            for name, a in matrices.items() if "lora_A" in name}


def callback():
    names = {"TrainerCallback": transformers.TrainerCallback, "override": lambda function: function, "os": os,
             "PeftModel": __import__("peft").PeftModel, "logger": types.SimpleNamespace(info_rank0=logging.info)}
    return llamafactory_data.functions("train/callbacks.py", ["PissaConvertCallback"], names)[0]()


@pytest.mark.parametrize("kind", WAYS)
def test_exact(kind, models, preferences, tmp_path):  # noqa: F811
    from peft import LoraConfig, get_peft_model

    base, (num_ranks, keys) = models[kind], WAYS[kind]
    settings = settings_for(base, preferences, tmp_path / "ours", **KEYS, pissa_iter=-1, pissa_convert=True, **keys)
    finished = run_to_end(settings, num_ranks)
    converts, place = callback(), types.SimpleNamespace(output_dir=str(tmp_path / "theirs"), should_save=True)

    def prepare(model):
        config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules="all-linear", init_lora_weights="pissa")
        model = get_peft_model(model.float(), config)
        converts.on_train_begin(place, None, None, model=model)
        return model

    rows = our_rows(settings, tmp_path)
    history, trained = transformers_run(base, rows, tmp_path, prepare=prepare, **SHARED)
    assert_same_training(finished, history)
    expected = logits_of(trained, rows[0]["input_ids"])
    converts.on_train_end(place, None, None, model=trained)
    for name in ("pissa_init", "pissa_backup", "pissa_converted"):
        mine, theirs = (products(folder / name) for folder in (finished.output_dir, tmp_path / "theirs"))
        start = products(tmp_path / "theirs" / "pissa_init")
        moved = distance(start, products(tmp_path / "theirs" / "pissa_backup"))
        assert distance(mine, theirs) < WEIGHTS * (moved if name != "pissa_init" else distance(start, {k: 0 * v for k, v in start.items()})), name

    # PEFT decomposes the model again for the adapter itself, and takes the converted one as it is.
    untrained = logits_of(load(base), rows[0]["input_ids"])
    for folder in (finished.output_dir, finished.output_dir / "pissa_converted"):
        got = logits_of(with_adapter(load(base), folder, is_trainable=False), rows[0]["input_ids"])
        assert (got - expected).norm() < 0.01 * (untrained - expected).norm(), folder


def test_randomized(models, preferences, tmp_path):  # noqa: F811
    """Random bits are not PEFT's. After many iterations the part is the exact one but for directions of nearly equal singular
    values, which leave nearly the same; after none it is far from that. The model is the same one."""
    base = models["qwen2"]
    plain = run_to_end(settings_for(base, preferences, tmp_path / "plain", finetuning_type="lora", max_steps=1))
    weights = load(base).state_dict()

    def left(iterations):
        """By layer: what is left of the weight, by the least that can be."""
        keys = dict(pissa_iter=iterations, pissa_convert=True, max_steps=1)
        finished = run_to_end(settings_for(base, preferences, tmp_path / str(iterations), **KEYS, **keys))
        assert finished.logged("loss")[0] == pytest.approx(plain.logged("loss")[0], rel=1e-5)
        for name, part in products(finished.output_dir / "pissa_init").items():
            weight = weights[name.removeprefix("base_model.model.") + ".weight"].double()
            least = torch.linalg.svdvals(weight)[4:].square().sum().sqrt().item()
            yield (weight - 3 * part).norm().item() / least  # alpha / rank is 3

    assert all(1 - 1e-6 < share < 1 + 1e-3 for share in left(1000))
    assert all(share > 1 + 1e-3 for share in left(0))


def test_a_resumed_run_takes_the_same_part(models, preferences, tmp_path):  # noqa: F811
    settings = settings_for(models["qwen2"], preferences, tmp_path / "whole", **KEYS, max_steps=4, save_strategy="steps", save_steps=2)
    whole = run_to_end(settings)
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "again" / "checkpoint-2")
    again = run_to_end(settings | dict(output_dir=str(tmp_path / "again"), resume_from_checkpoint=str(tmp_path / "again" / "checkpoint-2")))
    assert again.logged("loss") == whole.logged("loss")
    mine, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (tmp_path / "again", tmp_path / "whole"))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
