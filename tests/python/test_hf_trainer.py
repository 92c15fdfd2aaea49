"""longspan.parallelize_trainer: transformers' Trainer on several ranks beside Trainer alone on one."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import test_hf_pictures
import torch
from forks import run_forks
from hf_models import small_model
from hf_trainer import close, logs_of, padded, trainer_of

import longspan


def train(rank, folder, family, size, arguments, options, resume=False):
    from transformers import DataCollatorWithFlattening

    arguments = dict(arguments)
    collator = DataCollatorWithFlattening() if arguments.pop("packed", False) else padded
    if family in test_hf_pictures.KINDS:
        trainer = test_hf_pictures.trainer_of(f"{folder}/{size}", test_hf_pictures.small_model(family), **arguments)
    else:
        trainer = trainer_of(f"{folder}/{size}", small_model(family), collator, **arguments)
    if size:
        longspan.parallelize_trainer(trainer, sequence_parallel_size=size, **options)
    logs = logs_of(trainer, resume)
    if size > 1:
        ddp = trainer.model_wrapped
        assert ddp.gradient_as_bucket_view and ddp.bucket_bytes_cap == 4 << 20
    return logs


def test_buckets():
    """The size of buckets that a user has set in accelerate's handler of DDP stays."""
    from accelerate import DistributedDataParallelKwargs

    from longspan._trainer import settle_buckets

    for given, size in ((dict(), 4), (dict(bucket_cap_mb=100), 100)):
        handler = DistributedDataParallelKwargs(**given)
        accelerator = SimpleNamespace(ddp_handler=handler, device=torch.device("cpu"))
        settle_buckets(SimpleNamespace(accelerator=accelerator, args=SimpleNamespace(ddp_bucket_cap_mb=None)))
        assert handler.bucket_cap_mb == size and handler.gradient_as_bucket_view


@functools.cache
def alone(folder, family, **arguments):
    return run_forks(1, train, folder, family, 0, arguments, {})[0]


@pytest.mark.parametrize("family, ranks, size, arguments, options", [
    ("llama", 1, 1, {}, {}),
    ("gpt_oss", 2, 2, {}, dict(mode="zigzag-ring")),
    ("qwen3_5_text", 2, 2, {}, {}),
    ("qwen2_5_vl", 2, 2, {}, dict(mode="striped-ring")),
    ("qwen2", 3, 3, dict(packed=True, gradient_checkpointing=True), dict(takeover="sdpa")),
    ("qwen3", 2, 2, dict(gradient_checkpointing=True), dict(fused_loss=True, fused_layers=True, save_products=True)),
])
def test_trainer(tmp_path_factory, family, ranks, size, arguments, options):
    folder = tmp_path_factory.getbasetemp()
    expected = alone(folder, family, **arguments)
    for found in run_forks(ranks, train, folder, family, size, arguments, options):
        close(found, expected)


def metrics(given):
    """The mean and the number of predictions, which the tokens' places in whole rows weight."""
    numbers, labels = given.predictions[:, :-1], given.label_ids[:, 1:]
    places = np.broadcast_to(1 + np.arange(numbers.shape[1]), numbers.shape)
    return dict(mean=float((numbers * places)[labels != -100].mean()), count=float((labels != -100).sum()))


def shifted(batch):
    made = padded(batch)
    labels = made.pop("labels")
    return made | dict(shift_labels=torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100))


def evaluate(rank, folder, size, preprocess, collator=padded):
    trainer = trainer_of(folder, small_model("llama"), collator, prediction_loss_only=False)
    trainer.compute_metrics, trainer.preprocess_logits_for_metrics = metrics, preprocess
    if size:
        longspan.parallelize_trainer(trainer, sequence_parallel_size=size, mode="zigzag-ring", timeout=20)
    try:
        numbers = trainer.evaluate()
        return {name: numbers[f"eval_{name}"] for name in ("mean", "count", "loss")}
    except longspan.UsageError as error:
        return str(error)


def confidence(logits, labels):
    return logits.log_softmax(-1).amax(-1)


def confidence_so_far(logits, labels):
    return confidence(logits, labels).cumsum(1)


def no_confidence(logits, labels):
    raise KeyError("confidence")


def confidence_of_first_rank(logits, labels):
    return confidence(logits, labels) if torch.distributed.get_rank() == 0 else confidence(logits, labels)[:, :-1]


WRONG = [(confidence_so_far, "depends on other tokens"), (no_confidence, "for_metrics: 'confidence'"),
         (confidence_of_first_rank, "one number for each token of logits")]


def refusals(rank, folder):
    return [evaluate(rank, folder, 2, wrong) for wrong, _ in WRONG] + [evaluate(rank, folder, 2, confidence, shifted)]


def test_metrics(tmp_path):
    """compute_metrics gets whole rows of numbers that preprocess_logits_for_metrics makes of each token's logits."""
    expected = run_forks(2, evaluate, tmp_path, 0, confidence)[0]
    for found in run_forks(4, evaluate, tmp_path, 2, confidence):
        assert found == pytest.approx(expected, abs=1e-5)
    for found in run_forks(4, refusals, tmp_path):
        assert all(message in text for text, (_, message) in zip(found, [*WRONG, (None, "without labels")], strict=True)), found


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


def numbers(rank, folder, size):
    """Losses and token counts of a run whose last log is before its last step, with rows of odd lengths."""
    found = []
    for counted in ("all", "non_padding"):
        trainer = trainer_of(f"{folder}/{size}", small_model("llama"), max_steps=3, logging_steps=2, eval_strategy="no",
                             include_num_input_tokens_seen=counted)
        if size:
            longspan.parallelize_trainer(trainer, sequence_parallel_size=size, mode="ulysses")
        found += [trainer.train().training_loss, trainer.state.num_input_tokens_seen]
    return found


def test_numbers_of_a_run(tmp_path):
    (expected,) = run_forks(1, numbers, tmp_path, 0)
    for found in run_forks(2, numbers, tmp_path, 2):
        assert found == [pytest.approx(expected[0], abs=1e-5), expected[1], pytest.approx(expected[2], abs=1e-5), expected[3]]


def squares(logits, labels):
    """The sum of squared log-probabilities of labels, and their number."""
    own = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return (own.square() * (labels != -100)).sum(), (labels != -100).sum()


def train_squares(rank, folder, size):
    """A loss of the user's own: of whole rows by compute_loss_func, of ranks that share rows by compute_loss."""
    from transformers import Trainer

    class OwnLoss(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("shift_labels")
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
            loss = longspan.mean_loss(model, *squares(outputs.logits, labels), num_items_in_batch)
            return (loss, outputs) if return_outputs else loss

    def of_whole_rows(outputs, labels, num_items_in_batch):
        return squares(outputs.logits, torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100))[0] / num_items_in_batch

    trainer = trainer_of(f"{folder}/{size}", small_model("llama"), max_steps=2, eval_steps=1)
    if size:
        trainer.__class__ = OwnLoss
        longspan.parallelize_trainer(trainer, sequence_parallel_size=size, allow_unchecked=True)
    else:
        trainer.compute_loss_func = of_whole_rows
    return logs_of(trainer)


def test_own_loss(tmp_path):
    """Steps of two batches each: the sum over all tokens of a step is divided once."""
    (expected,) = run_forks(1, train_squares, tmp_path, 0)
    for found in run_forks(2, train_squares, tmp_path, 2):
        close(found, expected)


@pytest.mark.parametrize("arguments, message", [
    (dict(label_smoothing_factor=0.1), "label_smoothing_factor=0.1"),
    (dict(average_tokens_across_devices=False), "average_tokens_across_devices=False"),
    (dict(neftune_noise_alpha=5), "neftune_noise_alpha=5"),
    (dict(accelerator_config=dict(split_batches=True)), "split_batches=True"),
    (dict(accelerator_config=dict(dispatch_batches=True)), "dispatch_batches=True"),
])
def test_refused(tmp_path, arguments, message):
    with pytest.raises(longspan.UsageError, match=message):
        longspan.parallelize_trainer(trainer_of(str(tmp_path), small_model("llama"), **arguments), sequence_parallel_size=1)


def test_code_of_the_users_own(tmp_path):
    """A model of model_init, a loss of whole rows, and logits of parts of rows."""
    from transformers import Trainer

    class OwnLoss(Trainer):
        def compute_loss(self, model, inputs, **named):
            return super().compute_loss(model, inputs, **named)

    plain = trainer_of(str(tmp_path), small_model("llama"), prediction_loss_only=False, max_steps=1, eval_strategy="no")
    given = dict(args=plain.args, data_collator=plain.data_collator, train_dataset=plain.train_dataset)
    with pytest.raises(longspan.UsageError, match="model_init"):
        longspan.parallelize_trainer(Trainer(model_init=lambda: small_model("llama"), **given), sequence_parallel_size=1)
    with pytest.raises(longspan.UsageError, match=r"compute_loss_func, .* longspan.mean_loss\(model, total, count, num_items"):
        longspan.parallelize_trainer(Trainer(small_model("llama"), compute_loss_func=lambda *_, **__: 0, **given),
                                     sequence_parallel_size=1, allow_unchecked=True)
    with pytest.raises(longspan.UsageError, match="compute_metrics of logits .* pass preprocess_logits_for_metrics"):
        longspan.parallelize_trainer(Trainer(small_model("llama"), compute_metrics=metrics, **given), sequence_parallel_size=1)
    with pytest.raises(longspan.UsageError, match="compute_loss of OwnLoss"):
        longspan.parallelize_trainer(OwnLoss(small_model("llama"), **given), sequence_parallel_size=1)
    for trainer in (OwnLoss(small_model("llama"), **given), plain):
        longspan.parallelize_trainer(trainer, sequence_parallel_size=1, allow_unchecked=True)
        assert trainer.train().training_loss == pytest.approx(4.59, abs=0.1)
    with pytest.raises(longspan.UsageError, match="no predictions"):
        plain.predict(plain.eval_dataset)
    plain.evaluate()
