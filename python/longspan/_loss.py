"""Losses and gradients of ranks that share rows.

The rule, for every trainer: a rank's loss is the sum over its own tokens, times the number of all ranks, divided by the
number of labels of all ranks. The mean of the ranks' gradients is then the gradient of the mean over all labels, and a mean
is what DDP, FSDP and DeepSpeed compute. If none of them does, in a plain loop, longspan computes the mean at the end of
each backward. A mean of equal gradients changes nothing, so accumulated gradients stay right.

A caller that passes num_items_in_batch (the labels of all ranks), as transformers' Trainer does, gets the sum divided by
this number, and multiplies by the number of ranks itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from longspan._rows import IGNORED
from longspan.errors import UsageError

_BUCKET_BYTES = 64 << 20


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def all_sum(numbers: torch.Tensor, group: Optional[dist.ProcessGroup] = None) -> torch.Tensor:
    """The sum over the ranks of a group; None: over all ranks."""
    if dist.is_initialized():
        dist.all_reduce(numbers, group=group)
    return numbers


def all_equal(number: int, group: Optional[dist.ProcessGroup], device: torch.device) -> bool:
    """Whether the ranks of a group have the same number. Collective."""
    pair = torch.tensor([number, -number], device=device)
    dist.all_reduce(pair, op=dist.ReduceOp.MAX, group=group)
    return bool(pair[0] == -pair[1])


def mean_loss(
    total: torch.Tensor,
    count: torch.Tensor,
    group: Optional[dist.ProcessGroup],
    num_items: Optional[Union[torch.Tensor, int]] = None,
) -> torch.Tensor:
    """The loss of a batch. total: sum over this rank's tokens. count: this rank's labels. group: ranks that share rows.

    In training its value is the mean over the labels of all ranks, and its gradient follows the rule above. Without
    gradients its value is the mean over the labels of the group.
    """
    size = 1 if group is None else group.size()
    if total.requires_grad and num_items is not None:
        return total / num_items
    trains = total.requires_grad
    numbers = torch.stack([total.detach().double(), count.double()]).to(total.device)
    if trains or size > 1:
        numbers = all_sum(numbers, None if trains else group)
    if num_items is not None:
        return (numbers[0] / size / num_items).to(total.dtype)
    count = numbers[1].clamp(min=1)
    mean = (numbers[0] / count).to(total.dtype)
    if not trains:
        return mean
    own = total * (world_size() / count).to(total.dtype)
    return own + (mean - own).detach()


def loss_function(
    original: Callable[..., torch.Tensor], group: Optional[dist.ProcessGroup], is_whole: Callable[[], bool],
    is_fused: Callable[[], bool],
) -> Callable[..., torch.Tensor]:
    """Returns transformers' function for the loss of a causal model, over rows that a group shares. `is_whole`: whether the
    model runs on whole rows now. `is_fused`: whether it gets losses in place of logits."""

    def loss(
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: Optional[Union[torch.Tensor, int]] = None,
        ignore_index: int = IGNORED,
        shift_labels: Optional[torch.Tensor] = None,
        **others: Any,
    ) -> torch.Tensor:
        if is_whole():
            return original(logits, labels, vocab_size, num_items_in_batch=num_items_in_batch, ignore_index=ignore_index,
                            shift_labels=shift_labels, **others)
        if shift_labels is None:
            raise UsageError("the loss has no shift_labels, and labels of a part of a row cannot be shifted: pass batches "
                             "of the loader that parallelize() returned as model(**batch)")
        if logits.shape[:-1] != shift_labels.shape:
            raise UsageError(f"the loss has logits of {list(logits.shape[:-1])} tokens and shift_labels "
                             f"{list(shift_labels.shape)}: leave logits_to_keep out")
        if is_fused():
            if ignore_index != IGNORED:
                raise UsageError(f"the loss has ignore_index={ignore_index}: with fused_loss=True it must be {IGNORED}")
            total = logits.sum()
        else:
            total = original(logits, labels, vocab_size, num_items_in_batch=1, ignore_index=ignore_index,
                             shift_labels=shift_labels, **others)
        return mean_loss(total, (shift_labels != ignore_index).sum(), group, num_items_in_batch)

    return loss


def average_gradients(parameters: Iterator[torch.nn.Parameter]) -> None:
    """Replaces gradients by their mean over all ranks. Collective. A parameter that no rank has used keeps no gradient."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        return
    used = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.int32, device=trained[0].device)
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    buckets: dict[Any, list[torch.Tensor]] = {}
    for parameter, is_used in zip(trained, used.tolist()):
        if not is_used:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        kind = (parameter.grad.device, parameter.grad.dtype)
        buckets.setdefault(kind, []).append(parameter.grad)
        if sum(x.nbytes for x in buckets[kind]) >= _BUCKET_BYTES:
            _average(buckets.pop(kind))
    for gradients in buckets.values():
        _average(gradients)


def _average(gradients: list[torch.Tensor]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    flat /= dist.get_world_size()
    dist.all_reduce(flat)
    for gradient, mean in zip(gradients, flat.split([x.numel() for x in gradients])):
        gradient.copy_(mean.view_as(gradient))
