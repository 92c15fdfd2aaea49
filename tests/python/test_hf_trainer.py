"""longspan.parallelize_trainer: transformers' Trainer on several ranks beside Trainer alone on one."""

import functools

import pytest
import torch
from forks import run_forks
from hf_models import small_model

import longspan

EXAMPLES = 26


def examples(count=EXAMPLES):
    generator = torch.Generator().manual_seed(7)
    made = []
    for number in range(count):
        ids = torch.randint(1, 96, (19 + number * 5 % 17,), generator=generator)
        made.append(dict(input_ids=ids.tolist(), labels=ids.where(torch.arange(len(ids)) > 3, -100).tolist()))
    return made


def padded(batch):
    longest = max(len(example["input_ids"]) for example in batch)

    def stack(lists, padding):
        return torch.tensor([one + [padding] * (longest - len(one)) for one in lists])

    ids = [example["input_ids"] for example in batch]
    return dict(input_ids=stack(ids, 0), attention_mask=stack([[1] * len(one) for one in ids], 0),
                labels=stack([example["labels"] for example in batch], -100))


def trainer_of(folder, family, **arguments):
    from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

    collator = DataCollatorWithFlattening() if arguments.pop("packed", False) else padded
    options = dict(per_device_train_batch_size=2, per_device_eval_batch_size=4, gradient_accumulation_steps=2, max_steps=10,
                   learning_rate=1e-3, adam_epsilon=1e-2, logging_steps=1, eval_strategy="steps", eval_steps=5,
                   save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=3, prediction_loss_only=True)
    return Trainer(small_model(family), TrainingArguments(folder, **options | arguments), data_collator=collator,
                   train_dataset=examples(), eval_dataset=examples(6))


def logs_of(trainer, resume=False):
    trainer.train(resume_from_checkpoint=resume)
    logs = trainer.state.log_history
    return ([(log["loss"], log["grad_norm"]) for log in logs if "grad_norm" in log],
            [log["eval_loss"] for log in logs if "eval_loss" in log])


def train(rank, folder, family, size, arguments, options, resume=False):
    trainer = trainer_of(f"{folder}/{size}", family, **arguments)
    if size:
        longspan.parallelize_trainer(trainer, sequence_parallel_size=size, **options)
    return logs_of(trainer, resume)


def close(found, expected):
    assert len(found[0]) == len(expected[0]) and len(found[1]) == len(expected[1]) == 2
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours == (pytest.approx(theirs[0], abs=1e-5), pytest.approx(theirs[1], abs=1e-4)), (found, expected)
    assert found[1] == pytest.approx(expected[1], abs=1e-5)


@functools.cache
def alone(folder, family, **arguments):
    return run_forks(1, train, folder, family, 0, arguments, {})[0]


@pytest.mark.parametrize("family, ranks, size, arguments, options", [
    ("llama", 1, 1, {}, {}),
    ("llama", 2, 2, {}, dict(mode="zigzag-ring")),
    ("qwen2", 3, 3, dict(packed=True, gradient_checkpointing=True), dict(takeover="sdpa")),
])
def test_trainer(tmp_path_factory, family, ranks, size, arguments, options):
    folder = tmp_path_factory.getbasetemp()
    expected = alone(folder, family, **arguments)
    for found in run_forks(ranks, train, folder, family, size, arguments, options):
        close(found, expected)


def test_groups(tmp_path):
    """Two groups of two ranks beside two ranks alone."""
    expected = run_forks(2, train, tmp_path, "llama", 0, {}, {})[0]
    for found in run_forks(4, train, tmp_path, "llama", 2, {}, {}):
        close(found, expected)


def test_resume(tmp_path):
    expected = run_forks(2, train, tmp_path, "llama", 2, dict(save_strategy="steps", save_steps=5), {})
    found = run_forks(2, train, tmp_path, "llama", 2, dict(save_strategy="steps", save_steps=5), {},
                      str(tmp_path / "2" / "checkpoint-5"))
    assert found == expected


@pytest.mark.parametrize("arguments, message", [
    (dict(label_smoothing_factor=0.1), "label_smoothing_factor=0.1"),
    (dict(average_tokens_across_devices=False), "average_tokens_across_devices=False"),
])
def test_refused(tmp_path, arguments, message):
    with pytest.raises(longspan.UsageError, match=message):
        longspan.parallelize_trainer(trainer_of(str(tmp_path), "llama", **arguments), sequence_parallel_size=1)
