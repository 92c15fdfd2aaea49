"""A model's head and loss in one, so that no more than a part of the tokens has logits.

The head's own forward computes the losses of tokens: wrappers that gather a module's weights for its forward, as DeepSpeed's
ZeRO 3 does, find it where they expect it. transformers' function for the loss gets the losses in place of logits.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from longspan import _native
from longspan._rows import IGNORED
from longspan._state import State, outside_graphs
from longspan.errors import UsageError

# Model types whose forward passes the head's result to the loss as it is.
MODEL_TYPES = frozenset(["gemma2", "gemma3_text", "gpt_oss", "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_5_moe_text",
                         "qwen3_5_text", "qwen3_moe", "qwen3_next"])


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
        losses = _native.call("summed_token_losses", _native.autocast(x.flatten(0, -2)), own.weight, labels.flatten(), IGNORED,
                              None)  # loss_function() adds them up
        return losses.view(*labels.shape, 1)

    # A method of the head: a copy of the model gets a method of the copied head.
    head.forward = types.MethodType(outside_graphs(forward), head)
    state.fused_head = True
