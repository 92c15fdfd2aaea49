"""Training against transformers' own Trainer, which computes in double: the same rows in the same order."""

import json
import subprocess

import pytest
import torch
from conftest import BUILD, relative_difference, run_to_end, settings_of, write_model, write_tokenizer
from gpt_oss import attention_for
from tolerance import ADAM_EPSILON, ROUNDING, TOLERANCE

NUM_STEPS = 10
# Of what training moved weights: a step moves them by some 1e-3 of their size, and they round to 2^-24 of it.
WEIGHTS = TOLERANCE + 1e3 * ROUNDING


def our_rows(settings, folder):
    """input_ids and labels as Longspan makes them (their own parity is tested elsewhere)."""
    config = folder / "probe.json"
    config.write_text(json.dumps(settings))
    lines = subprocess.run(
        [BUILD / "data_probe", config], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [{key: json.loads(line)[key] for key in ("input_ids", "labels")} for line in lines]


def transformers_run(model_folder, rows, folder, prepare=lambda model: model, dtype=torch.float64,
                     trainer_keys=lambda model: {}, **arguments):
    """`prepare` may freeze parameters of the model or wrap it. `trainer_keys`: more keys of Trainer, for the model.
    Returns the log and the trained model."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    def pad(batch):
        longest = max(len(row["input_ids"]) for row in batch)

        def column(name, filler):
            return torch.tensor([row[name] + [filler] * (longest - len(row[name])) for row in batch])

        mask = [[1] * len(row["input_ids"]) for row in batch]
        for row in mask:
            row += [0] * (longest - len(row))
        return {
            "input_ids": column("input_ids", 0),
            "labels": column("labels", -100),
            "attention_mask": torch.tensor(mask),
        }

    torch.set_num_threads(1)
    # In double, so that what is between us are our own roundings and not those of torch's kernels.
    model = AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=dtype, attn_implementation=attention_for(model_folder)
    )
    model = prepare(model).to(dtype)
    trainer = InOrder(
        model,
        TrainingArguments(
            output_dir=str(folder / "transformers"),
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            **arguments,
        ),
        train_dataset=rows,
        data_collator=pad,
        **trainer_keys(model),
    )
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    return history, model


@pytest.mark.parametrize(
    "kind, batch, optimizer",
    [
        ("qwen2", 1, dict(lr_scheduler_type="cosine", warmup_steps=3, weight_decay=0.1)),
        ("llama", 2, dict(lr_scheduler_type="linear", max_grad_norm=0.5, adam_beta2=0.95)),
        ("mistral", 1, dict(lr_scheduler_type="constant")),
        ("gemma3", 1, dict(lr_scheduler_type="constant", weight_decay=0.1)),
        ("phi3", 2, dict(lr_scheduler_type="constant")),
        ("glm4", 1, dict(lr_scheduler_type="constant", weight_decay=0.1)),
        ("qwen3", 1, dict(lr_scheduler_type="constant")),
    ],
)
def test_losses_norms_and_weights(kind, batch, optimizer, models, data, tmp_path):
    """24 rows in steps of 4 x batch rows: qwen2's run crosses an epoch, llama's ends in a short step."""
    shared = dict(
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=4,
        learning_rate=1e-3,
        adam_epsilon=ADAM_EPSILON,
        max_steps=NUM_STEPS,
        **optimizer,
    )
    models = dict(models)
    if kind not in models:
        models[kind] = str(write_model(tmp_path / kind, kind))
    settings = settings_of(models[kind], data, tmp_path / "ours") | shared
    settings |= dict(disable_shuffling=True, max_samples=22)
    finished = run_to_end(settings)
    rows = our_rows(settings, tmp_path)
    assert len(rows) == 22
    history, model = transformers_run(models[kind], rows, tmp_path, **shared)

    def theirs(key):
        return [entry[key] for entry in history]

    assert len(finished.logged("loss")) == NUM_STEPS
    assert relative_difference(finished.logged("loss"), theirs("loss")) < TOLERANCE
    assert relative_difference(finished.logged("grad_norm"), theirs("grad_norm")) < TOLERANCE
    ours = finished.logged("learning_rate")
    assert ours == pytest.approx(theirs("learning_rate"), rel=1e-12, abs=1e-18)
    assert finished.logged("epoch")[:NUM_STEPS] == pytest.approx(theirs("epoch"))

    # What was saved is what transformers holds after its own training.
    from transformers import AutoModelForCausalLM

    saved, info = AutoModelForCausalLM.from_pretrained(
        finished.output_dir, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    start = AutoModelForCausalLM.from_pretrained(models[kind], dtype=torch.float32).state_dict()
    mine = saved.state_dict()
    moved = apart = 0.0
    for name, value in model.state_dict().items():
        moved += (value - start[name]).double().square().sum().item()
        apart += (value - mine[name]).double().square().sum().item()
    assert (apart / moved) ** 0.5 < WEIGHTS


@pytest.mark.parametrize("keys", [
    dict(),
    dict(num_ranks=2, zero_stage=2),
    dict(num_ranks=2, zero_stage=3),
    dict(finetuning_type="freeze", freeze_trainable_layers=1, freeze_extra_modules="embed_tokens"),
], ids=["plain", "zero 2", "zero 3", "freeze"])
def test_padding_token_in_every_prompt(keys, data, tmp_path):
    """pad_token_id is the end of every turn, as in SmolLM2: transformers' nn.Embedding gives it no gradient."""
    end = write_tokenizer(tmp_path / "tokenizer").eos_token_id
    folder = write_model(tmp_path / "model", "llama", tie_word_embeddings=True, pad_token_id=end)
    shared = dict(per_device_train_batch_size=1, gradient_accumulation_steps=4, learning_rate=1e-3, max_steps=3,
                  adam_epsilon=ADAM_EPSILON)
    keys = dict(keys)
    num_ranks = keys.pop("num_ranks", 1)
    settings = settings_of(folder, data, tmp_path / "ours") | shared | dict(disable_shuffling=True) | keys
    rows = our_rows(settings_of(folder, data, tmp_path / "ours") | shared | dict(disable_shuffling=True), tmp_path)
    assert all(row["input_ids"].count(end) > 1 for row in rows)
    settings["gradient_accumulation_steps"] //= num_ranks
    finished = run_to_end(settings, num_ranks)

    def prepare(model):
        for name, parameter in model.named_parameters():
            if "freeze_extra_modules" in keys:
                parameter.requires_grad_(name.startswith("model.layers.1.") or "embed_tokens" in name)
        return model

    history, _ = transformers_run(folder, rows, tmp_path, prepare, **shared)
    # Without it the norm is some hundredths off.
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in history]) < TOLERANCE, key


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "constant_with_warmup"])
def test_learning_rates(name, train):
    from transformers import get_scheduler

    # Under transformers' "constant" a warmup is silently dropped; here it is refused.
    warmup = {} if name == "constant" else {"warmup_ratio": 0.25}
    finished = train(lr_scheduler_type=name, max_steps=6, gradient_accumulation_steps=1, **warmup)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    # ceil(0.25 * 6) = 2
    schedule = get_scheduler(name, optimizer, num_warmup_steps=2, num_training_steps=6)
    expected = []
    for _ in range(6):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert finished.logged("learning_rate") == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_bf16(train):
    """bf16 follows fp32 as closely as 8 bits allow; fp32 masters move by less than a bf16 step."""
    single = train(max_steps=6)
    for key in ("bf16", "pure_bf16"):
        half = train(max_steps=6, **{key: True})
        assert relative_difference(single.logged("loss"), half.logged("loss")) < 0.02, key
        assert relative_difference(single.logged("grad_norm"), half.logged("grad_norm")) < 0.1, key
        config = json.loads((half.output_dir / "config.json").read_text())
        assert config.get("dtype", config.get("torch_dtype")) == "bfloat16"
