"""A model's head and loss in one, so that no more than a part of the tokens has logits.

The head's own forward computes the losses of tokens: wrappers that gather a module's weights for its forward, as DeepSpeed's
ZeRO 3 does, find it where they expect it. transformers' function for the loss gets the losses in place of logits.

Ranks that share rows on CPUs compute about as many losses each: a rank with more labels than others gives tokens away. A row
of a question and an answer has its labels at the end, on the last ranks.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from longspan import _native
from longspan._loss import of_ranks
from longspan._rows import IGNORED
from longspan._state import State, outside_graphs
from longspan.errors import UsageError

# Model types whose forward passes the head's result to the loss as it is.
MODEL_TYPES = frozenset(["gemma2", "gemma3_text", "gpt_oss", "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_5_moe_text",
                         "qwen3_5_text", "qwen3_moe", "qwen3_next"])

_LEAST_SHARE = 64  # tokens move if they are at least this fraction of all tokens with a label


def check(base: Any, config: Any) -> None:
    """Raises UsageError if the head of a model is another than a matrix, or the model changes its logits."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    head, name = base.get_output_embeddings(), config.model_type
    if name not in MODEL_TYPES:
        raise UsageError(f"fused_loss=True is not possible for {name}, only for {', '.join(sorted(MODEL_TYPES))}: leave it out")
    if cap := getattr(config, "final_logit_softcapping", None):
        raise UsageError(f"fused_loss=True is not possible for {name} with final_logit_softcapping={cap}: leave it out")
    if type(head) is not torch.nn.Linear or head.bias is not None:
        raise UsageError(f"fused_loss=True needs a head that is a torch.nn.Linear without bias, and {name} has {head}: leave it "
                         "out")
    if base.loss_function is not ForCausalLMLoss:
        raise UsageError(f"fused_loss=True takes transformers' own loss, and {name} has the loss_function "
                         f"{base.loss_function}: leave fused_loss out")


def install(base: Any, state: State) -> None:
    """Replaces the forward of a model's head, which check() has accepted."""
    head = base.get_output_embeddings()

    def forward(own: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        """x: [B, T, D]. Returns losses [B, T, 1] if the forward of the model has labels, and else logits."""
        labels = state.head_labels
        if labels is None:
            return torch.nn.Linear.forward(own, x)
        if labels.shape != x.shape[:-1]:
            raise UsageError(f"the head got {list(x.shape[:-1])} tokens and shift_labels {list(labels.shape)}: leave "
                             "logits_to_keep out")
        rows, of_rows = _balanced(_native.autocast(x.flatten(0, -2)), labels.flatten(), state)
        losses = _native.call("summed_token_losses", rows, own.weight, of_rows, IGNORED, None)
        if len(losses) > labels.numel():  # loss_function() adds them up
            losses, more = losses.split([labels.numel(), len(losses) - labels.numel()])
            losses = torch.cat([losses[:-1], losses[-1:] + more.sum()])
        return losses.view(*labels.shape, 1)

    # A method of the head: a copy of the model gets a method of the copied head.
    head.forward = types.MethodType(outside_graphs(forward), head)
    state.fused_head = True


def _balanced(x: torch.Tensor, labels: torch.Tensor, state: State) -> tuple[torch.Tensor, torch.Tensor]:
    """x: [T, D]. labels: [T]. Returns these and, after them, those of other ranks' tokens that this rank computes. Tokens that
    this rank gives away have no label in the result. Collective over the ranks that share rows."""
    sharing = state.sharing
    if sharing.group is None or x.device.type != "cpu":
        return x, labels
    own = (labels != IGNORED).nonzero().squeeze(1)
    table = of_ranks([len(own), len(labels)], sharing.group, sharing.timeout)
    counts = [count for count, _ in table]
    shares = [(sum(counts) + rank) // len(counts) for rank in range(len(counts))]
    given, taken = ([max(a - b, 0) for a, b in pairs] for pairs in (zip(counts, shares), zip(shares, counts)))
    if sum(given) * _LEAST_SHARE < sum(counts) or not all(num_tokens for _, num_tokens in table):
        return x, labels
    begin, count = sum(given[:sharing.rank]), given[sharing.rank]
    moving = own[len(own) - count:]
    ends = torch.zeros(sum(given), dtype=torch.double)
    ends[begin:begin + count] = labels[moving].double()
    ends = _native.call("sum_of_ranks", ends, sharing.name, sharing.timeout).long()
    moved = _Moved.apply(x[moving], begin, sum(given), sharing)
    part = slice(sum(taken[:sharing.rank]), sum(taken[:sharing.rank + 1]))
    return torch.cat([x, moved[part]]), torch.cat([labels.index_fill(0, moving, IGNORED), ends[part]])


class _Moved(torch.autograd.Function):
    """The tokens that ranks give away, on all of them. The gradient of a token is that of the rank that takes it."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, begin: int, num_tokens: int, sharing: Any) -> torch.Tensor:
        ctx.part, ctx.sharing = slice(begin, begin + len(given)), sharing
        tokens = given.new_zeros([num_tokens, given.shape[1]])
        tokens[ctx.part] = given
        return _native.call("sum_of_ranks", tokens, sharing.name, sharing.timeout)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        tokens = _native.call("sum_of_ranks", gradients[0].contiguous(), ctx.sharing.name, ctx.sharing.timeout)
        return tokens[ctx.part], None, None, None
