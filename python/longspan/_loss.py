"""Losses and gradients of ranks that share rows.

The rule, for every trainer: a rank's loss is the sum over its own tokens, times the number of all ranks, divided by the
number of labels of all ranks. The mean of the ranks' gradients is then the gradient of the mean over all labels, and a mean
is what DDP, FSDP and DeepSpeed compute. If none of them does, in a plain loop, longspan computes the mean at the end of
each backward. A mean of equal gradients changes nothing, so accumulated gradients stay right.

A caller that passes num_items_in_batch (the labels of all ranks), as transformers' Trainer does, gets the sum divided by
this number, and multiplies by the number of ranks itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from longspan import _native
from longspan._rows import IGNORED
from longspan.attention import DEFAULT_TIMEOUT, check_numbers, name_of
from longspan.errors import CommunicationError, UsageError

_BUCKET_BYTES = 64 << 20


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def all_sum(numbers: torch.Tensor, group: Optional[dist.ProcessGroup], timeout: int) -> torch.Tensor:
    """Returns the sum over the ranks of a group; None: over all ranks. Collective. Raises CommunicationError if a rank has
    ended, or is silent for `timeout` seconds."""
    if world_size() == 1:
        return numbers
    return _native.call("sum_of_ranks", numbers, name_of(_every(group)), timeout)


def first_timeout(timeout: int) -> int:
    """Returns the timeout with which all ranks have met first; `timeout` if they have not met. Ranks that pass different
    timeouts do not meet again."""
    return _native.call("first_timeout", name_of(_every(None)), device_of(None).type == "cuda", timeout)


def of_ranks(numbers: list[int], group: Optional[dist.ProcessGroup], timeout: int) -> list[list[int]]:
    """Returns the numbers of each rank of a group, all below 2^53. All ranks pass as many. Collective."""
    everyone = _every(group)
    table = torch.zeros(everyone.size(), len(numbers), dtype=torch.double, device=device_of(group))
    table[everyone.rank()] = torch.tensor(numbers, dtype=torch.double)
    return all_sum(table, group, timeout).long().tolist()


def of_first_rank(x: torch.Tensor, group: Optional[dist.ProcessGroup], timeout: int) -> torch.Tensor:
    """Returns the integers x of the first rank of a group. x has as many dimensions on all ranks. Collective."""
    everyone = _every(group)
    sizes = of_ranks(list(x.shape), group, timeout)[0]
    own = x.double() if everyone.rank() == 0 else torch.zeros(sizes, dtype=torch.double)
    return all_sum(own.to(device_of(group)), group, timeout).to(x)


def texts_of_ranks(text: str, group: Optional[dist.ProcessGroup], timeout: int) -> list[str]:
    """Returns the texts of each rank of a group. Collective."""
    own = text.encode()
    lengths = [length for length, in of_ranks([len(own)], group, timeout)]
    rows = of_ranks([*own.ljust(max(lengths), b"\0")], group, timeout)
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths)]


def require_equal(number: int, failure: Optional[UsageError], sentence: Callable[[], str], group: Optional[dist.ProcessGroup],
                  timeout: int) -> None:
    """Raises UsageError on all ranks of a group if one of them has a failure, which the error repeats with the rank unless
    all have the same one, or if the ranks have different numbers: `sentence`, which may be collective. Collective."""
    text = b"" if failure is None else str(failure).encode()
    try:
        found = of_ranks([number, len(text)], group, timeout)
        longest = max(length for _, length in found)
        texts = of_ranks([*text.ljust(longest, b"\0")], group, timeout) if longest else []
    except CommunicationError:
        if failure is None:
            raise
        raise failure from None  # the reason why the ranks do not meet
    failures = {rank: bytes(texts[rank][:length]).decode() for rank, (_, length) in enumerate(found) if length}
    if failures:
        rank, sentence_of_rank = next(iter(failures.items()))
        is_same = len(failures) == len(found) and len(set(failures.values())) == 1
        raise UsageError(sentence_of_rank if is_same else f"rank {dist.get_global_rank(_every(group), rank)}: {sentence_of_rank}")
    if any(other != number for other, _ in found):
        raise UsageError(sentence())


def device_of(group: Optional[dist.ProcessGroup]) -> torch.device:
    """Returns the device of small tables that ranks exchange: the CPU, or the current GPU if the group has no backend for
    CPUs, so that ranks make no connections of another kind."""
    serves_cpus = "cpu:" in dist.get_backend_config(group)
    return torch.device("cpu") if serves_cpus else torch.device("cuda", torch.cuda.current_device())


def _every(group: Optional[dist.ProcessGroup]) -> Any:
    return dist.distributed_c10d._get_default_group() if group is None else group


def check_total(total: Any, count: Any, num_items: Any, group: Optional[dist.ProcessGroup], timeout: int) -> None:
    """Raises UsageError on all ranks if one of them has a sum of losses or a number of losses that is no number, or if a part of
    them has sums without a gradient, or no num_items. Collective over all ranks; without gradients, over the group."""
    failure: Optional[UsageError] = None
    for name, number in (("total", total), ("count", count)):
        if not isinstance(number, torch.Tensor) or number.dim() > 0:
            given = list(number.shape) if isinstance(number, torch.Tensor) else type(number).__name__
            failure = UsageError(f"mean_loss() got a {name} that is {given}, and must be a tensor of one number, as losses.sum() is")
    trains = torch.is_grad_enabled()
    if world_size() > 1 and (trains or group is not None):
        has_gradient = isinstance(total, torch.Tensor) and total.requires_grad
        require_equal(2 * (num_items is not None) + has_gradient, failure, lambda: "mean_loss() got a total without a "
                      "gradient, or num_items_in_batch, on a part of the ranks: compute the total from the model's output on "
                      "every rank, also on one without labels, (losses * mask).sum(), and pass num_items_in_batch on all or none",
                      None if trains else group, timeout)
    elif failure is not None:
        raise failure


def mean_loss(
    total: torch.Tensor,
    count: torch.Tensor,
    group: Optional[dist.ProcessGroup],
    num_items: Optional[Union[torch.Tensor, int]] = None,
    timeout: int = DEFAULT_TIMEOUT,
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
        numbers = all_sum(numbers, None if trains else group, timeout)
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
    is_fused: Callable[[], bool], timeout: int,
) -> Callable[..., torch.Tensor]:
    """Returns transformers' function for the loss of a causal model, over rows that a group shares. `is_whole`: called once by
    each loss, whether the model runs on whole rows now. `is_fused`: whether it gets losses in place of logits."""

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
            if logits.shape[-1] != 1:
                raise UsageError(f"the loss has {logits.shape[-1]} numbers for each token, and with fused_loss=True takes one: "
                                 "an adapter encloses the head. Leave the head out of the adapter, or leave fused_loss out")
            total = logits.sum()
        else:
            total = original(logits, labels, vocab_size, num_items_in_batch=1, ignore_index=ignore_index,
                             shift_labels=shift_labels, **others)
        return mean_loss(total, (shift_labels != ignore_index).sum(), group, num_items_in_batch, timeout)

    return loss


def average_gradients(parameters: Iterable[torch.nn.Parameter], timeout: Optional[int] = None) -> None:
    """Replaces gradients by their mean over all ranks: in a plain loop, after backward(), those of parameters that are not the
    parallelized model's, such as a head on its hidden_states. A parameter that no rank has used keeps no gradient.

    parameters: the same ones on all ranks, in the same order. timeout: seconds that a collective may take; None: the timeout
    of the process's first call, such as parallelize(). Collective over all ranks. Raises UsageError on the rank that is wrong,
    CommunicationError.
    """
    if isinstance(parameters, (torch.Tensor, torch.nn.Module)):
        raise UsageError(f"parameters is a {type(parameters).__name__}, and must be an iterable of parameters, as parameters() of a "
                         "module returns")
    if timeout is not None:
        check_numbers(timeout=timeout)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained or world_size() == 1:
        return
    timeout = first_timeout(DEFAULT_TIMEOUT) if timeout is None else timeout
    own = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.float, device=trained[0].device)
    used = all_sum(own, None, timeout)
    buckets: dict[Any, list[torch.Tensor]] = {}
    for parameter, is_used in zip(trained, used.tolist()):
        if not is_used:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        kind = (parameter.grad.device, parameter.grad.dtype)
        buckets.setdefault(kind, []).append(parameter.grad)
        if sum(x.nbytes for x in buckets[kind]) >= _BUCKET_BYTES:
            _average(buckets.pop(kind), timeout)
    for gradients in buckets.values():
        _average(gradients, timeout)


def _average(gradients: list[torch.Tensor], timeout: int) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    flat /= dist.get_world_size()
    flat = all_sum(flat, None, timeout)
    for gradient, mean in zip(gradients, flat.split([x.numel() for x in gradients])):
        gradient.copy_(mean.view_as(gradient))
