"""Numbers of the tokens of whole rows, from those of each rank's own tokens.

B: rows, S: tokens of a whole row, T: tokens of this rank, padding included.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Optional

import torch
import torch.distributed as dist

from longspan._loss import all_sum, require_equal
from longspan._rows import ROWS, Rows
from longspan.errors import UsageError

_DTYPES = frozenset([torch.bool, torch.int32, torch.int64, torch.half, torch.bfloat16, torch.float, torch.double])


class _Gathered(torch.autograd.Function):
    """[B, S] of [B, T]. All ranks compute the same loss of the result, so each has the whole gradient of its own tokens; a
    mean over ranks divides it by their number."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, index: torch.Tensor, length: int, group: dist.ProcessGroup,
                timeout: int) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.size = group.size()
        return all_sum(_spread(own, index, length), group, timeout)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (index,) = ctx.saved_tensors
        own = gradients[0].gather(1, index.clamp(min=0)).masked_fill(index < 0, 0)
        return own * ctx.size, None, None, None, None


def gather(own: torch.Tensor, index: torch.Tensor, length: int, group: Optional[dist.ProcessGroup], timeout: int) -> torch.Tensor:
    """Returns [B, S], 0 where no rank has a token. own, index (of a Cut): [B, T]. length: S. group: ranks that share rows; None:
    this rank alone. Collective. Raises CommunicationError."""
    index = index.to(own.device)
    numbers = own.int() if own.dtype == torch.bool else own
    if group is None:
        whole = _spread(numbers, index, length)
    else:
        whole: Any = _Gathered.apply(numbers, index, length, group, timeout)
    return whole.bool() if own.dtype == torch.bool else whole


def _spread(own: torch.Tensor, index: torch.Tensor, length: int) -> torch.Tensor:
    place = torch.where(index < 0, length, index)  # a token after the last one takes the numbers of padding
    spread = own.new_zeros(len(own), length + 1).scatter(1, place, own.masked_fill(index < 0, 0))
    return spread[:, :length].contiguous()


def gather_checked(state: Any, values: Any, batch: Any) -> torch.Tensor:
    """As gather(), of a batch that was cut for the State of a model. Raises UsageError on all ranks that share rows."""
    failure: Optional[UsageError] = None
    text, index, length = "", torch.empty(0), 0
    try:
        rows = _checked(state.key, values, batch)
        index, length = rows.index, rows.length
        text = f"{list(values.shape[:1])} of {values.dtype}, {'with' if values.requires_grad else 'without'} a gradient"
        number = zlib.crc32(repr((text, rows.digest)).encode())
    except UsageError as error:
        failure, number = error, 0
    group, timeout = (state.sharing.group, state.sharing.timeout) if state.sharing.size > 1 else (None, 0)
    if group is not None:
        require_equal(number, failure, lambda: f"gather_tokens() has values of {text} here, and other values or another batch on "
                      "another rank: all ranks that share rows must make the same calls", group, timeout)
    elif failure is not None:
        raise failure
    return gather(values, index, length, group, timeout)  # pyright: ignore[reportArgumentType]


def _checked(key: int, values: Any, batch: Any) -> Rows:
    """Returns the rows of a batch. Raises UsageError."""
    rows = batch.get(ROWS) if isinstance(batch, Mapping) else None
    if not isinstance(rows, Rows) or rows.key != key:
        raise UsageError(f"gather_tokens() got a batch without {ROWS} of this model: pass the batch as the loader that parallelize() "
                         "returned has made it")
    if rows.failure:
        raise UsageError(rows.failure)
    wanted = list(rows.index.shape) if rows.index is not None else []
    if not isinstance(values, torch.Tensor) or list(values.shape) != wanted:
        given = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise UsageError(f"gather_tokens() got values {given}, and this rank's tokens of the batch are {wanted}: pass one number for "
                         "each token")
    if values.dtype not in _DTYPES:
        raise UsageError(f"gather_tokens() got values of {values.dtype}, and takes "
                         f"{', '.join(sorted(map(str, _DTYPES)))}")
    return rows
