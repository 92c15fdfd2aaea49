"""Gated delta networks (Qwen3-Next, Qwen3.5) over rows that ranks share: each rank computes all tokens of some heads."""

from __future__ import annotations

import torch

from longspan._state import State
from longspan.errors import UsageError


def install(model: torch.nn.Module, state: State) -> None:
    """Replaces the forward of a model's recurrent layers."""
    layers = [module for module in model.modules() if type(module).__name__.endswith("GatedDeltaNet")]
    if layers:
        raise UsageError(f"{type(layers[0]).__name__} is not supported")
    del state
