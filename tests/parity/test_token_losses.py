"""Losses that weigh tokens, and the accuracy of tokens, beside LLaMA-Factory's own functions in transformers' trainer, which computes in double."""

import dataclasses
import types
from typing import Optional

import llamafactory_data
import numpy as np
import pytest
import torch
import transformers
from conftest import relative_difference, run_to_end, settings_of
from shared import made_once
from test_trainer import our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE

NUM_STEPS = 5
SHARED = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-3, weight_decay=0.1,
              adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS)
NAMES = {"use_dft_loss": ["dft_loss_func", "_dft_cross_entropy"],
         "use_eaft_loss": ["eaft_loss_func", "_eaft_cross_entropy"],
         "use_asft_loss": ["asft_loss_func", "_asft_cross_entropy", "_dft_cross_entropy", "_kl_divergence"]}
# At which the KL to a reference that has learnt nothing is about half of the loss.
ASFT_ALPHA = 0.05
# The model's own probabilities are all alike at first, so that its losses are weighed alike: rows that it has learnt are
# not.
WAYS = {
    "one": (1, dict()),
    "ulysses": (2, dict(sequence_parallel_mode="ulysses", zero_stage=3, offload_optimizer=True)),
    "zigzag": (3, dict(sequence_parallel_mode="zigzag-ring", zero_stage=2)),
    "data": (2, dict(sequence_parallel_size=1, gradient_accumulation_steps=1, zero_stage=3)),
}


@pytest.fixture(scope="module")
def learnt(models, data, place):
    """A model that knows some of its rows' tokens well, and others not."""
    return made_once(place / "learnt", lambda folder: run_to_end(
        settings_of(models["qwen2"], data, folder, learning_rate=1e-2, max_steps=20)))


def accuracy_of(logits, labels):
    metric, most_probable = llamafactory_data.functions(
        "train/sft/metric.py", ["ComputeAccuracy", "eval_logit_processor"],
        {"dataclass": dataclasses.dataclass, "np": np, "torch": torch, "numpify": np.asarray, "IGNORE_INDEX": -100,
         "Optional": Optional})
    predictions = most_probable(logits, labels)
    return metric()(types.SimpleNamespace(predictions=predictions, label_ids=labels))["accuracy"]


def beside_reference(loss, folder):
    """ASFT's loss as compute_loss_func of transformers' trainer, for the model of its keys: LLaMA-Factory's mean over a
    micro-batch, by the micro-batch's share of the labels of the step."""
    frozen = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    def keys(model):
        inputs = {}
        model.register_forward_pre_hook(lambda _, __, given: inputs.update(given), with_kwargs=True)

        def weighed(outputs, labels, num_items_in_batch=None):
            with torch.no_grad():
                logits = frozen(input_ids=inputs["input_ids"], attention_mask=inputs.get("attention_mask")).logits
            count = (labels[:, 1:] != -100).sum()
            return loss(outputs, labels, logits, ASFT_ALPHA) * (1 if num_items_in_batch is None else count / num_items_in_batch)

        return dict(compute_loss_func=weighed)

    return keys


@pytest.fixture(scope="module")
def reference(learnt, models, data, tmp_path_factory):
    """Their log, and their loss and accuracy of all rows at the end."""
    runs = {}

    def run(key):
        if key not in runs:
            folder = tmp_path_factory.mktemp("theirs")
            rows = our_rows(settings_of(learnt, data, folder / "none", disable_shuffling=True, max_samples=18), folder)
            loss, *_ = llamafactory_data.functions("train/trainer_utils.py", NAMES[key],
                                                   {"torch": torch, "Optional": Optional, "F": torch.nn.functional})
            keys = (beside_reference(loss, models["qwen2"]) if key == "use_asft_loss"
                    else lambda _: dict(compute_loss_func=loss))
            history, model = transformers_run(learnt, rows, folder, **SHARED,
                                              trainer_keys=keys)
            longest = max(len(row["labels"]) for row in rows)
            labels = torch.tensor([row["labels"] + [-100] * (longest - len(row["labels"])) for row in rows])
            ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
            of_all = keys(model)["compute_loss_func"]
            with torch.no_grad():
                output = model.eval()(input_ids=torch.tensor(ids), attention_mask=None)
            runs[key] = history, of_all(output, labels).item(), accuracy_of(output.logits, labels)
        return runs[key]

    return run


@pytest.mark.thinned(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", NAMES)
def test_weighed_losses(key, way, reference, learnt, models, data, tmp_path):
    num_ranks, keys = WAYS[way]
    settings = settings_of(learnt, data, tmp_path / "ours", disable_shuffling=True, max_samples=18, **{key: True})
    settings |= dict(eval_dataset="chats", do_eval=True, compute_accuracy=True) | SHARED | dict(sequence_parallel_size=num_ranks) | keys
    if key == "use_asft_loss":
        settings |= dict(ref_model=models["qwen2"], asft_alpha=ASFT_ALPHA)
    finished = run_to_end(settings, num_ranks)
    history, evaluated, accuracy = reference(key)
    for name in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(name), [entry[name] for entry in history]) < TOLERANCE, name
    assert finished.logged("eval_loss") == [pytest.approx(evaluated, rel=TOLERANCE)]
    # Two tokens may be as probable as each other but for roundings.
    assert 0.1 < accuracy < 0.9 and finished.logged("eval_accuracy") == [pytest.approx(accuracy, abs=5e-4)]


@pytest.mark.parametrize("keys", [
    dict(finetuning_type="full", zero_stage=3, sequence_parallel_mode="ulysses"),
    dict(finetuning_type="lora", lora_rank=4, lora_dropout=0.5, neftune_noise_alpha=5, sequence_parallel_mode="zigzag-ring"),
    dict(finetuning_type="lora", lora_rank=4, zero_stage=3, sequence_parallel_mode="ulysses"),
], ids=lambda keys: keys["finetuning_type"])
def test_the_reference_of_asft_is_the_model_before_training(keys, learnt, data, tmp_path):
    """LLaMA-Factory needs ref_model with LoRA."""
    logs = []
    for ref_model in ({}, {"ref_model": str(learnt)}):
        settings = settings_of(learnt, data, tmp_path / str(len(logs)), use_asft_loss=True, asft_alpha=2.0, max_steps=3,
                               learning_rate=1e-2, sequence_parallel_size=2)
        finished = run_to_end(settings | keys | ref_model, 2)
        logs.append([finished.logged("loss"), finished.logged("grad_norm")])
    # The same sums: only bits of the gradient's order may differ, and do not.
    assert logs[0] == logs[1]
