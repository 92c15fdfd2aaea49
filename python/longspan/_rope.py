"""Rotary embeddings whose frequencies depend on the largest position of a batch (transformers' types "dynamic" and "longrope").

B: rows, T: tokens of this rank, H: elements of a head that are rotated.
"""

from __future__ import annotations

from typing import Any

import torch

from longspan._state import State, outside_graphs
from longspan.errors import UsageError


def install(model: torch.nn.Module, state: State) -> None:
    """Lets each rank take the frequencies that a rank with the whole batch takes. A further token, which is cut off again, has the
    largest position of the batch."""

    def before(module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if state.unshared:
            return None
        if not state.in_forward:
            raise UsageError(f"{type(module).__name__}: a rotary embedding of the type {_type_of(module)} takes its frequencies from "
                             "the largest position of a batch, and runs outside of the forward of the model that parallelize() "
                             "got: call this model as model(**batch)")
        arguments = dict(zip(("x", "position_ids", "layer_type"), given)) | named
        positions = arguments["position_ids"]  # [..., B, T]
        largest = torch.zeros_like(positions[..., :1]) + state.largest_position
        return (), arguments | dict(position_ids=torch.cat([positions, largest], -1))

    def after(module: torch.nn.Module, given: Any, output: Any) -> Any:
        del module, given
        return output if state.unshared else tuple(x[..., :-1, :] for x in output)  # cos, sin: [..., B, T + 1, H]

    for module in model.modules():
        if _depends_on_length(module):
            module.register_forward_pre_hook(outside_graphs(before), with_kwargs=True)
            module.register_forward_hook(outside_graphs(after))


def _type_of(module: torch.nn.Module) -> Any:
    return getattr(module, "rope_type", None)


def _depends_on_length(module: torch.nn.Module) -> bool:
    given = _type_of(module)  # of gemma3: by types of layers
    types = given.values() if isinstance(given, dict) else [given]
    return any(isinstance(one, str) and ("dynamic" in one or one == "longrope") for one in types)
