"""Gradient checkpointing that computes attention once."""

from __future__ import annotations

import functools
import threading
from typing import Any, Optional

import torch
from torch.utils.checkpoint import checkpoint

from longspan import _native


class _Open(threading.local):
    """The results of the checkpointed region that this thread runs."""

    results: Optional[Any] = None


_open = _Open()


class _Region:
    """Within the context, attention saves results, or replays them. May be entered several times."""

    def __init__(self, results: Any, replays: bool) -> None:
        self._results, self._replays = results, replays
        self._outer: list[Any] = []

    def __enter__(self) -> None:
        if self._replays:
            _native.call("replay_attention", self._results)
        self._outer.append(_open.results)
        _open.results = self._results

    def __exit__(self, *error: Any) -> None:
        _open.results = self._outer.pop()


def save_attention() -> tuple[Any, Any]:
    """The context_fn of a torch.utils.checkpoint.checkpoint() that computes attention once:

        checkpoint(layer, x, use_reentrant=False, context_fn=longspan.save_attention)

    The forward saves the output of each longspan.attention() in the region, as many elements as the output, and one number
    for each token and head. The recomputation takes the saved output, and repeats only the exchanges between ranks (MEMO,
    arXiv 2407.12117). Gradients are equal to the bit. Raises UsageError in the backward if a saved output was changed in
    place.
    """
    results = _native.call("saved_attention")
    return _Region(results, False), _Region(results, True)


def open_results() -> Optional[Any]:
    """The results that attention saves or replays now; None outside of save_attention()'s regions."""
    return _open.results


def save_in_layers(model: torch.nn.Module) -> None:
    """Adds save_attention to the gradient checkpointing of transformers' layers. Leaves reentrant checkpointing, which takes
    no context, and a context_fn of the caller's own as they are."""
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if not isinstance(function, functools.partial) or function.func is not checkpoint:
            continue
        if function.keywords.get("use_reentrant") is False and "context_fn" not in function.keywords:
            module._gradient_checkpointing_func = functools.partial(function, context_fn=save_attention)  # pyright: ignore
