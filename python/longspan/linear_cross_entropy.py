"""The cross-entropy of a language model's head, without the logits of all tokens."""

from __future__ import annotations

from typing import Optional

import torch

from longspan import _native
from longspan.errors import UsageError


def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    ignore_index: int = -100,
    softcap: Optional[float] = None,
    reduction: str = "sum",
) -> torch.Tensor:
    """Cross-entropy of the logits x weight^T. Only a part of the tokens has logits at a time. The backward recomputes them,
    except with the reduction "sum", without a softcap, and with x and weight of the same dtype, fp32 or fp64: the forward
    then computes the gradients, and each loss that awaits its backward holds them, [V, D] unless the weight is frozen.

    x: [T, D]. weight: [V, D], of another dtype too. labels: int64 [T], the index of each token's next token; tokens with
        `ignore_index` have the loss 0.
    softcap: c in c tanh(logits / c).
    reduction: "sum" returns the sum over the tokens, "none" each token's loss [T]. Losses are fp32, of fp64 x fp64.

    Logits are fp32, or fp64 for fp64 x. On a CPU the logits of bf16 x are rounded to bf16 first. Under torch.autocast x is
    cast, as that of torch's linear. The labels are not shifted here, so the function serves any part of a row: rows that
    ranks share take the labels of TokenOrder.take(). Differentiable once in x and weight. Raises UsageError.
    """
    if reduction not in ("sum", "none"):
        raise UsageError(f"reduction is {reduction!r}, and must be 'sum' or 'none'")
    arguments = _native.autocast(x), weight, labels, ignore_index, softcap
    if reduction == "sum":
        return _native.call("summed_token_losses", *arguments).sum()
    return _native.call("token_losses", *arguments)[0]


class LinearCrossEntropy(torch.nn.Module):
    """linear_cross_entropy() with a weight of its own, in place of a head and a loss."""

    def __init__(self, dim: int, vocabulary: int, *, ignore_index: int = -100, softcap: Optional[float] = None,
                 reduction: str = "sum", device: Optional[torch.device] = None, dtype: Optional[torch.dtype] = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(vocabulary, dim, device=device, dtype=dtype))
        self.ignore_index, self.softcap, self.reduction = ignore_index, softcap, reduction
        torch.nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """x: [..., D]. labels: [...]."""
        losses = linear_cross_entropy(x.flatten(0, -2), self.weight, labels.flatten(), ignore_index=self.ignore_index,
                                      softcap=self.softcap, reduction=self.reduction)
        return losses if self.reduction == "sum" else losses.view(labels.shape)
