"""A mistake or the silence of one rank is an exception on the others as well."""

import os
import time

import pytest
import torch
from forks import run_forks
from hf_models import small_model, uneven_batches
from hf_trainer import padded, trainer_of

import longspan

TIMEOUT = 10  # seconds; also of calls that must succeed


def error_of(function):
    with pytest.raises(longspan.LongspanError) as caught:
        function()
    return type(caught.value).__name__, str(caught.value)


def wrong(rank, folder):
    """A batch, whole rows, arguments, a model, a setting and a batch of a Trainer that are wrong on rank 1 alone."""
    found = []
    batch = uneven_batches(1)[0]
    mask = batch["attention_mask"]
    model, loader = longspan.parallelize(small_model("llama"), [batch | dict(attention_mask=mask * (1 + rank))], timeout=60,
                                         sequence_parallel_size=2)
    found.append(error_of(lambda: model(**next(iter(loader)))))
    model, loader = longspan.parallelize(small_model("llama"), [batch], timeout=60, sequence_parallel_size=2)
    cut = next(iter(loader))
    found.append(error_of(lambda: model(**(batch if rank else cut))))
    found.append(error_of(lambda: model(**cut, logits_to_keep=rank)))
    found.append(error_of(lambda: longspan.parallelize(small_model("llama"), timeout=60 + rank, sequence_parallel_size=2)))
    found.append(error_of(lambda: longspan.parallelize(small_model("llama", attention_dropout=0.1 * rank), sequence_parallel_size=2)))
    for change in (dict(timeout="x"), dict(token_keys=5), dict(timeout=None)):
        given = dict(timeout=60, sequence_parallel_size=2) | (change if rank else {})
        found.append(error_of(lambda given=given: longspan.parallelize(small_model("llama"), **given)))
    model = small_model("llama")
    model.config = None if rank else model.config
    found.append(error_of(lambda: longspan.parallelize(model, timeout=60, sequence_parallel_size=2)))
    trainer = trainer_of(folder / str(rank), small_model("llama"), label_smoothing_factor=0.5 * rank)
    found.append(error_of(lambda: longspan.parallelize_trainer(trainer, sequence_parallel_size=2)))
    trainer = trainer_of(folder / str(rank), small_model("llama"), max_steps=1, eval_strategy="no",
                         collator=lambda examples: padded(examples) | ({"words": 1} if rank else {}))
    found.append(error_of(lambda: longspan.parallelize_trainer(trainer, sequence_parallel_size=2).train()))
    return found


def test_a_wrong_rank(tmp_path):
    first, second = run_forks(2, wrong, tmp_path)
    assert first == second
    kind, text = first.pop(3)  # both ranks have met with timeout=60 before
    assert kind == "UsageError" and "timeout=60 on rank 0 and timeout=61 on rank 1" in text, text
    for (kind, text), sentence in zip(first, ["attention_mask has other values than 0 and 1", "got whole rows",
                                              "got logits_to_keep", "attention_dropout is 0.1", "timeout is 'x'",
                                              "token_keys is 5", "timeout is None", "no attribute 'model_type'", "label_smoothing_factor=0.5",
                                              "the batch has words"], strict=True):
        assert kind == "UsageError" and text.startswith("rank 1: ") and sentence in text, text


def silent(rank):
    """Errors of rank 0 while rank 1 does something else, each after a call that both make."""
    import torch.distributed as dist

    found = []

    def alone(function):
        start = time.monotonic()
        if rank == 0:
            found.append((*error_of(function), time.monotonic() - start))
        dist.barrier()

    def made():
        model, loader = longspan.parallelize(small_model("llama", num_hidden_layers=1), uneven_batches(2), timeout=TIMEOUT,
                                             sequence_parallel_size=2)
        return model, next(iter(loader))

    model, batch = made()
    model(**batch).loss.backward()
    alone(lambda: model(**batch))
    group = dist.new_group([0, 1])
    x = torch.ones(1, 4, 2, 3)
    longspan.gather_seq_scatter_heads(x, 1, 2, group=group, timeout=TIMEOUT)
    alone(lambda: longspan.gather_seq_scatter_heads(x, 1, 2, group=group, timeout=TIMEOUT))
    alone(lambda: longspan.gather_seq_scatter_heads(x, 1, 1, group=group, timeout=TIMEOUT))  # a mistake, on broken connections
    return found


def test_a_silent_rank():
    first, second = run_forks(2, silent)
    assert second == []
    for (kind, text, seconds), expected in zip(first, ["CommunicationError"] * 2 + ["UsageError"], strict=True):
        assert kind == expected and seconds < 60, (text, seconds)


def ended(rank, folder):
    """Writes the errors of rank 0's backwards after the end of rank 1, whose forwards both have run."""
    import torch.distributed as dist

    group = dist.group.WORLD
    q = torch.randn(4, 2, 8, requires_grad=True)
    outputs = [longspan.attention(q, q, q, group=group, mode=mode) for mode in ("zigzag-ring", "ulysses", "allgather")]
    outputs.append(longspan.gather_seq_scatter_heads(q, 0, 1, group=group))
    model, loader = longspan.parallelize(small_model("llama", num_hidden_layers=1), uneven_batches(1), sequence_parallel_size=2)
    outputs.append(model(**next(iter(loader))).loss)
    dist.barrier()
    if rank == 0:
        time.sleep(0.5)
        errors = [error_of(output.sum().backward) for output in outputs]
        (folder / "errors").write_text("\n".join(f"{kind} {text}" for kind, text in errors))
    os._exit(0)


def test_a_rank_ends_before_the_backward(tmp_path):
    with pytest.raises(FileNotFoundError):  # no rank has a result
        run_forks(2, ended, tmp_path)
    errors = (tmp_path / "errors").read_text().splitlines()
    assert len(errors) == 5
    for error in errors:
        assert error.startswith("CommunicationError Rank 0 of 2 of the ") and "did not finish" in error, errors
