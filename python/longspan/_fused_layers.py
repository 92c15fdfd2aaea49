"""Norms and gates of transformers' layers, each in one pass over memory forward and one backward.

transformers' RMSNorm saves three tensors as large as its input for the backward, and its gate two further ones. Longspan's
operators save their inputs alone.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from longspan import _native
from longspan.errors import UsageError

# For each model type, the classes whose function the operators compute.
_CLASSES = {name: (f"{prefix}RMSNorm", f"{prefix}MLP") for name, prefix in
            [("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3")]}
_DTYPES = frozenset([torch.float32, torch.bfloat16, torch.float64])


def check(config: Any) -> None:
    """Raises UsageError for models whose layers are not known."""
    name = config.model_type
    if name not in _CLASSES:
        raise UsageError(f"fused_layers=True is not possible for {name}, only for {', '.join(sorted(_CLASSES))}: leave it out")
    if config.hidden_act not in ("silu", "swish"):
        raise UsageError(f"fused_layers=True is not possible for {name} with hidden_act={config.hidden_act}, only with silu: "
                         "leave it out")


def install(model: torch.nn.Module, config: Any) -> None:
    """Replaces the forwards of the norms and gates of a model, which check() has accepted. A module whose forward is not its
    class's own, by a hook of another library, stays as it is."""
    norm, mlp = _CLASSES[config.model_type]
    for module in model.modules():
        name = type(module).__name__
        if name in (norm, mlp) and "forward" not in vars(module):
            module.forward = types.MethodType(_norm if name == norm else _mlp, module)


def _norm(own: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """hidden_states: [..., D], as the result."""
    if hidden_states.dtype not in _DTYPES or own.weight.dtype not in _DTYPES:
        return type(own).forward(own, hidden_states)
    return _native.call("rms_norm", hidden_states, own.weight, own.variance_epsilon)[0]


def _mlp(own: Any, x: torch.Tensor) -> torch.Tensor:
    """x: [..., D], as the result."""
    gate, up = own.gate_proj(x), own.up_proj(x)
    if gate.dtype not in _DTYPES or gate.dtype != up.dtype:
        return own.down_proj(own.act_fn(gate) * up)
    return own.down_proj(_native.call("swiglu", gate, up))
