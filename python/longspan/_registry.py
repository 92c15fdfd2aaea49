"""The states of this process's parallelized models."""

from __future__ import annotations

from typing import Any

import torch

from longspan._state import State
from longspan.errors import UsageError

_states: list[State] = []


def next_key() -> int:
    """Returns the key of the state that add() takes next."""
    return len(_states)


def add(state: State) -> None:
    _states.append(state)


def state_of(key: int) -> State:
    return _states[key]


def parallelized(model: torch.nn.Module) -> Any:
    """Returns transformers' model within wrappers. Raises UsageError if parallelize() did not change it."""
    for module in model.modules():
        if getattr(module, "_longspan_key", None) is not None:
            return module
    raise UsageError(f"{type(model).__name__} was not parallelized: call longspan.parallelize(model, ...) first")


def state_of_model(model: torch.nn.Module) -> State:
    """Returns the state of a parallelized model, which wrappers may enclose. Raises UsageError."""
    return _states[parallelized(model)._longspan_key]


def shares_rows(config: Any) -> bool:
    """Whether a config belongs to a parallelized model that does not run on whole rows now."""
    return any(state.config is config and not state.unshared for state in _states)
