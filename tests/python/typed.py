"""Types that callers see. Only the type checker reads this file (test_package.py): nothing runs it."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Iterable
from typing import Any, Optional

import torch
from typing_extensions import Unpack, assert_type

import longspan


class Model(torch.nn.Module):
    """Stands for a model of transformers."""


class Trainer:
    """Stands for transformers' Trainer."""


def whole_rows(model: Model, loader: Iterable[dict[str, Any]], perhaps: Optional[Iterable[Any]]) -> None:
    assert_type(longspan.parallelize(model, loader, sequence_parallel_size=2), tuple[Model, longspan.ParallelLoader])
    assert_type(longspan.parallelize(model, sequence_parallel_size=2, mode="ulysses"), tuple[Model, None])
    assert_type(longspan.parallelize(model, perhaps, sequence_parallel_size=2)[0], Model)
    longspan.parallelize(model, sequence_parallel_size=2, mod="ulysses")  # pyright: ignore[reportCallIssue]
    longspan.parallelize(model, loader, sequence_parallel_size=2, timeout="1")  # pyright: ignore[reportArgumentType, reportCallIssue]


def wrapped(trainer: Trainer, **options: Unpack[longspan.ParallelizeOptions]) -> None:
    assert_type(longspan.parallelize_trainer(trainer, sequence_parallel_size=2, **options), Trainer)
    longspan.parallelize_trainer(trainer, sequence_parallel_size=2, num_token=1)  # pyright: ignore[reportCallIssue]


def aliases(config: longspan.Config, overrides: longspan.Overrides, documents: longspan.Documents,
            loss: longspan.LossFunction, session: longspan.Session, x: torch.Tensor) -> None:
    longspan.train(config, overrides=overrides)
    longspan.attention(x, x, x, documents=documents)
    session.forward_backward([], loss)
