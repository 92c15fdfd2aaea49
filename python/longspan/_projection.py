"""A linear layer in two nodes of autograd. The gradient of the input is computed before those of the parameters, so that an
exchange of the former runs under the latter."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.nn.functional import linear


class Parameters(torch.autograd.Function):
    """Passes a projection's parameters on. The backward returns the gradients that Projection has left."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, bias: Optional[torch.Tensor], later: list) -> Any:
        ctx.later = later
        return weight.view_as(weight), None if bias is None else bias.view_as(bias)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        x, dy = ctx.later
        ctx.later[:] = [None, None]
        needs_weight, needs_bias, _ = ctx.needs_input_grad
        x, dy = x.flatten(0, -2), dy.flatten(0, -2)
        return dy.t() @ x if needs_weight else None, dy.sum(0) if needs_bias else None, None


class Projection(torch.autograd.Function):
    """A linear layer, whose backward leaves the gradients of its parameters to Parameters."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], later: list) -> torch.Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.later = later
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,) = gradients
        x, weight, bias = ctx.saved_tensors
        ctx.later[:] = [x, dy]
        nothing = dy.new_zeros(())  # takes no memory when expanded
        return (dy @ weight, nothing.expand_as(weight) if ctx.needs_input_grad[1] else None,
                nothing.expand_as(bias) if ctx.needs_input_grad[2] else None, None)
