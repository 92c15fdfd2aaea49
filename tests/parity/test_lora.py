"""Adapters against PEFT's on transformers' and TRL's trainers, both ways through files; frozen layers."""

import json
import math
import subprocess

import pytest
import torch
from conftest import PROGRAM, relative_difference, run_to_end, settings_of, write_model
from pairs import encoded_rows, load, pair_columns, trl_run, write_preference_data
from safetensors.torch import load_file, save_file
from shared import made_once
from test_trainer import WEIGHTS, our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE, of_log_ratio, of_training

NUM_STEPS = 10
SHARED = dict(
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    adam_epsilon=ADAM_EPSILON,
    max_steps=NUM_STEPS,
    weight_decay=0.1,
)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="session")
def models(models, place):
    """More, whose files have several projections in one tensor."""
    return models | {kind: str(made_once(place / kind, lambda folder: write_model(folder, folder.name)))
                     for kind in ("phi3", "glm4")}


@pytest.fixture(scope="module")
def preferences(place):
    return str(made_once(place / "for_adapters", write_preference_data))


def run(settings, num_ranks=1):
    return run_to_end(settings, num_ranks)


def settings_for(model, data, folder, **keys):
    return settings_of(model, data, folder) | SHARED | dict(disable_shuffling=True) | keys


def write_adapter(model_folder, folder, **keys):
    """An adapter as PEFT begins (init_lora_weights=False: B is not zero) and saves it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(7)
    config = LoraConfig(task_type="CAUSAL_LM", **(dict(r=4, lora_alpha=12, target_modules=ALL) | keys))
    get_peft_model(load(model_folder), config).save_pretrained(folder)
    return str(folder)


def with_adapter(model, adapter, is_trainable=True):
    from peft import PeftModel

    return PeftModel.from_pretrained(model, adapter, is_trainable=is_trainable)


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits


def distance(left, right):
    """Of two dictionaries of tensors."""
    assert left.keys() == right.keys() and left
    return math.sqrt(sum((left[k] - right[k]).double().square().sum().item() for k in left))


def assert_same_training(finished, theirs, tolerance=TOLERANCE):
    assert len(set(finished.logged("loss"))) == NUM_STEPS
    assert relative_difference(finished.logged("loss"), [entry["loss"] for entry in theirs]) < tolerance
    norms = [entry["grad_norm"] for entry in theirs]
    assert relative_difference(finished.logged("grad_norm"), norms) < tolerance


def assert_same_adapters(ours, peft_model, start, folder):
    """The files of both, and what PEFT makes of ours."""
    peft_model.save_pretrained(folder / "theirs")
    mine, theirs = [load_file(f / "adapter_model.safetensors") for f in (ours, folder / "theirs")]
    begin = load_file(f"{start}/adapter_model.safetensors")
    assert distance(mine, theirs) < WEIGHTS * distance(begin, theirs)
    count = sum(p.numel() for p in peft_model.parameters() if p.requires_grad)
    assert sum(value.numel() for value in mine.values()) == count
    config = json.loads((ours / "adapter_config.json").read_text())
    for key, value in json.loads((folder / "theirs" / "adapter_config.json").read_text()).items():
        if key == "target_modules":
            assert sorted(config[key]) == sorted(value)
        elif key in ("r", "lora_alpha", "lora_dropout", "use_rslora", "bias", "peft_type", "task_type"):
            assert config[key] == value, key


def export(config, folder, **keys):
    path = folder / "export.json"
    path.write_text(json.dumps(config | keys))
    ran = subprocess.run([PROGRAM, "export", path], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


ADAPTERS = {
    "fresh": dict(),
    # rank-stabilized: alpha / sqrt(rank)
    "stabilized": dict(target_modules=["q_proj", "v_proj", "down_proj"], use_rslora=True, r=6),
    "begun": dict(target_modules=["k_proj", "o_proj", "gate_proj"], init_lora_weights=False),
    # one adapter on several projections
    "fused": dict(target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], init_lora_weights=False),
    "fused, fresh": dict(target_modules=["gate_up_proj", "v_proj"], use_rslora=True),
}
KINDS = {"begun": "llama", "fused": "phi3", "fused, fresh": "glm4"}


@pytest.mark.parametrize("name", ADAPTERS)
def test_sft(name, models, preferences, tmp_path):
    base = models[KINDS.get(name, "qwen2")]
    start = write_adapter(base, tmp_path / "start", **ADAPTERS[name])
    settings = settings_for(base, preferences, tmp_path / "ours")
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start)
    finished = run(settings)
    rows = our_rows(settings, tmp_path)
    history, trained = transformers_run(
        base, rows, tmp_path, prepare=lambda model: with_adapter(model, start), **SHARED
    )
    assert_same_training(finished, history)
    assert_same_adapters(finished.output_dir, trained, start, tmp_path)

    # Our file through PEFT computes what PEFT's own training ended with.
    ids = rows[0]["input_ids"]
    loaded = with_adapter(load(base), finished.output_dir, is_trainable=False)
    expected, got, untrained = logits_of(trained, ids), logits_of(loaded, ids), logits_of(load(base), ids)
    assert (got - expected).norm() < 0.01 * (untrained - expected).norm()

    # Merged: the same weights as PEFT's merge of the same file, and nothing else.
    keys = dict(model_name_or_path=base, adapter_name_or_path=str(finished.output_dir))
    export(keys, tmp_path, export_dir=str(tmp_path / "merged"))
    merged = loaded.merge_and_unload().state_dict()
    ours = load(tmp_path / "merged").state_dict()
    before = load(base).state_dict()
    assert ours.keys() == merged.keys()
    changed = set()
    for key, value in merged.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-6, atol=1e-6)
        if not torch.equal(ours[key], before[key]):
            changed.add(key.split(".")[-2])
    assert changed == set(ADAPTERS[name].get("target_modules", ALL))


LORAPLUS = dict(learning_rate=2e-4, max_steps=5, weight_decay=0.1)
SHARED_WAYS = {"one": (1, dict()),
               "ulysses": (2, dict(sequence_parallel_mode="ulysses", zero_stage=3)),
               "zigzag": (3, dict(sequence_parallel_mode="zigzag-ring", zero_stage=2, offload_optimizer=True))}


@pytest.fixture(scope="module")
def loraplus(models, preferences, tmp_path_factory):
    """An adapter at the start, and PEFT's own training of it with its LoRA+ optimizer."""
    from peft.optimizers import create_loraplus_optimizer

    folder = tmp_path_factory.mktemp("loraplus")
    start = write_adapter(models["qwen2"], folder / "start", use_rslora=True, lora_alpha=2, init_lora_weights=False)
    settings = settings_for(models["qwen2"], preferences, folder / "rows")

    def optimizer(model):
        return create_loraplus_optimizer(
            model, torch.optim.AdamW, lr=LORAPLUS["learning_rate"], loraplus_lr_ratio=16.0, eps=ADAM_EPSILON,
            loraplus_weight_decay=LORAPLUS["weight_decay"])

    history, trained = transformers_run(
        models["qwen2"], our_rows(settings, folder), folder, prepare=lambda model: with_adapter(model, start),
        trainer_keys=lambda model: dict(optimizers=(optimizer(model), None)), **SHARED | LORAPLUS)
    return start, history, trained


@pytest.mark.parametrize("way", SHARED_WAYS)
def test_loraplus(way, loraplus, models, preferences, tmp_path):
    start, history, trained = loraplus
    num_ranks, keys = SHARED_WAYS[way]
    settings = settings_for(models["qwen2"], preferences, tmp_path / "ours", **LORAPLUS, **keys)
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start, use_rslora=True, loraplus_lr_ratio=16.0)
    finished = run(settings | dict(sequence_parallel_size=num_ranks), num_ranks)
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in history]) < TOLERANCE, key
    assert finished.logged("learning_rate") == pytest.approx([entry["learning_rate"] for entry in history], rel=1e-12)
    assert_same_adapters(finished.output_dir, trained, start, tmp_path)


REFERENCES = ["adapter off", "adapter off, begun", "adapter of its own"]


@pytest.mark.parametrize("reference", REFERENCES)
def test_dpo(reference, models, preferences, tmp_path):
    """The reference is the base model; another adapter where ref_model_adapters names one. TRL takes
    the model with its adapter as it was before training, which is the base if that begins at zero."""
    from trl import DPOConfig, DPOTrainer

    base = models["qwen2"]
    begun = reference != "adapter off"
    keys = dict(target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=not begun)
    start = write_adapter(base, tmp_path / "start", **keys)
    settings = settings_for(base, preferences, tmp_path / "ours", stage="dpo", dataset="pairs")
    # An adapter whose B is zero has hardly a gradient at first.
    arguments = SHARED | dict(learning_rate=1e-3 if begun else 3e-3, beta=0.02 if begun else 0.5)
    tolerance = of_training(NUM_STEPS, arguments["learning_rate"])
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start)
    settings |= dict(learning_rate=arguments["learning_rate"], pref_beta=arguments["beta"])
    theirs = None
    if reference == "adapter off, begun":
        theirs = load(base)
    elif reference == "adapter of its own":
        settings |= dict(ref_model=base, ref_model_adapters=start)
    finished = run(settings)
    columns = pair_columns(encoded_rows(settings, tmp_path))
    model = with_adapter(load(base), start)
    theirs = trl_run(DPOTrainer, DPOConfig, model, columns, tmp_path, ref_model=theirs, **arguments)
    assert_same_training(finished, theirs, tolerance)
    allowed = of_log_ratio(finished.logged("logps/chosen"))
    for key in ("rewards/chosen", "rewards/margins", "logps/chosen", "logps/rejected"):
        assert finished.logged(key) == pytest.approx([entry[key] for entry in theirs], rel=tolerance, abs=allowed), key
    margins = finished.logged("rewards/margins")
    if reference == "adapter off, begun":
        assert abs(margins[0]) > 0.01
    else:
        assert abs(margins[0]) < 1e-6 and abs(margins[-1]) > 1e-3


def test_new_adapters(models, preferences, tmp_path):
    """What an adapter is before training: a step of 1e-12 leaves it as it was made."""
    settings = settings_for(models["qwen2"], preferences, tmp_path / "ours", max_steps=1, learning_rate=1e-12)
    settings |= dict(finetuning_type="lora", lora_rank=4, weight_decay=0.0, use_rslora=True)
    finished = run(settings)
    matrices = load_file(finished.output_dir / "adapter_model.safetensors")
    # PEFT's own names and shapes.
    expected = load_file(write_adapter(models["qwen2"], tmp_path / "peft", lora_alpha=8) + "/adapter_model.safetensors")
    assert {k: v.shape for k, v in matrices.items()} == {k: v.shape for k, v in expected.items()}
    assert len({tuple(value.flatten()[:4].tolist()) for key, value in matrices.items() if "lora_A" in key}) == 14
    for key, value in matrices.items():
        if "lora_B" in key:
            assert value.abs().max() <= 2e-12
            continue
        # Uniform within 1 / sqrt(in): both ends are reached, mean 0, variance bound^2 / 3.
        bound = 1 / math.sqrt(value.shape[1])
        assert -bound <= value.min() < -0.97 * bound and 0.97 * bound < value.max() <= bound, key
        assert abs(value.mean()) < 4 * bound / math.sqrt(3 * value.numel()), key
        assert value.square().mean() == pytest.approx(bound**2 / 3, rel=0.25), key
    config = json.loads((finished.output_dir / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (4, 8, True)


@pytest.mark.parametrize("kind, target, stage", [("qwen2", "q_proj,down_proj", "sft"), ("qwen2", "q_proj,down_proj", "dpo"),
                                                 ("phi3", "qkv_proj,gate_up_proj", "sft")])
def test_dropout_does_not_depend_on_shards(kind, target, stage, models, preferences, tmp_path):
    def losses(name, size, **keys):
        settings = settings_for(models[kind], preferences, tmp_path / name, stage=stage)
        settings |= dict(finetuning_type="lora", dataset="chats" if stage == "sft" else "pairs")
        settings |= dict(lora_dropout=0.3, lora_target=target, learning_rate=2e-2) | keys
        finished = run(settings | dict(sequence_parallel_size=size), size)
        names = load_file(finished.output_dir / "adapter_model.safetensors")
        assert {name.split(".")[-3] for name in names} == set(target.split(","))
        return finished.logged("loss")

    whole = losses("whole", 1)
    assert relative_difference(whole, losses("sharded", 2)) < TOLERANCE
    without = losses("without", 1, lora_dropout=0.0)
    # B begins at zero: the first loss has nothing to drop out.
    assert whole[0] == pytest.approx(without[0], rel=1e-6)
    assert relative_difference(whole[1:], without[1:]) > 1e-3


@pytest.mark.parametrize("layers", [1, -1])
def test_freeze(layers, models, preferences, tmp_path):
    base = models["qwen2"]
    settings = settings_for(base, preferences, tmp_path / "ours")
    settings |= dict(finetuning_type="freeze", freeze_trainable_layers=layers)
    finished = run(settings)
    trained_layer = "model.layers.1." if layers > 0 else "model.layers.0."

    def freeze(model):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(trained_layer))
        return model

    history, model = transformers_run(base, our_rows(settings, tmp_path), tmp_path, prepare=freeze, **SHARED)
    assert_same_training(finished, history)
    begin, mine = load_file(f"{base}/model.safetensors"), load_file(finished.output_dir / "model.safetensors")
    assert begin.keys() == mine.keys()
    moved = {key for key in begin if not torch.equal(begin[key], mine[key])}
    assert moved == {key for key in begin if key.startswith(trained_layer)}
    theirs = {key: model.state_dict()[key] for key in moved}
    start = {key: begin[key] for key in moved}
    assert distance({key: mine[key] for key in moved}, theirs) < WEIGHTS * distance(start, theirs)


def refusal(settings, folder):
    path = folder / "refused.json"
    path.write_text(json.dumps(settings | dict(export_dir=str(folder / "never"))))
    ran = subprocess.run([PROGRAM, "export", path], capture_output=True, text=True)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stderr


@pytest.mark.parametrize("began", [False, "gaussian", "orthogonal", "pissa", "olora"])
def test_how_an_adapter_began(began, models, tmp_path):
    """PEFT loads the adapter onto the model as it is, or onto one that it changes: then it is refused."""
    adapter = write_adapter(models["llama"], tmp_path / "adapter", init_lora_weights=began, target_modules=["q_proj"])
    if began == "gaussian":
        path = f"{adapter}/adapter_model.safetensors"
        save_file({name: torch.ones_like(x) / 8 for name, x in load_file(path).items()}, path, {"format": "pt"})
    settings = dict(model_name_or_path=models["llama"], adapter_name_or_path=adapter)
    if began in ("pissa", "olora"):
        assert f'init_lora_weights is "{began}"; only plain LoRA is supported' in refusal(settings, tmp_path)
        return
    export(settings, tmp_path, export_dir=str(tmp_path / "merged"))
    ids = [5, 9, 200, 31]
    theirs = logits_of(with_adapter(load(models["llama"]), adapter, is_trainable=False), ids)
    assert (logits_of(load(tmp_path / "merged"), ids) - theirs).norm() < 1e-5 * theirs.norm()


def test_a_grown_vocabulary(models, tmp_path):
    from peft import LoraConfig, get_peft_model

    model = load(models["llama"])
    size = model.config.vocab_size
    model.resize_token_embeddings(size + 5)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    message = refusal(dict(model_name_or_path=models["llama"], adapter_name_or_path=str(tmp_path / "adapter")), tmp_path)
    assert f"a vocabulary that was grown from {size} to {size + 5} tokens" in message
    assert f"resize_token_embeddings({size + 5})" in message
