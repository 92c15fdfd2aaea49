"""transformers' attention over rows that ranks share.

transformers finds the function under the name "longspan" in its AttentionInterface; a model's config names it. B: rows, N:
query heads, M: key and value heads, T: tokens of this rank, H, V: elements of a head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Optional

import torch

from longspan._loss import world_size
from longspan._registry import shares_rows, state_of
from longspan._rows import ROWS, Rows
from longspan._state import outside_graphs
from longspan.attention import attend, calls_compared
from longspan.errors import UsageError

NAME = "longspan"

# Arguments that transformers' models pass on to attention and that change no causal attention: they repeat positions, or
# belong to other layers and to the loss.
_HARMLESS = frozenset([
    "position_ids", "position_embeddings", "cache_position", "shift_labels", "labels", "num_items_in_batch", "layer_idx",
    "return_dict", "output_hidden_states", "logits_to_keep",
])

# Functions of transformers.masking_utils that combine to causal attention within documents and windows.
_CAUSAL_PARTS = frozenset([
    "causal_mask_function", "and_masks.<locals>.and_mask", "sliding_window_overlay.<locals>.inner_mask",
    "packed_sequence_mask_function.<locals>.inner_mask", "remap_positions_for_packed_sequence.<locals>.inner_mask",
])

# Further arguments of transformers' makers of masks: the shape and the type of the mask, and allowances to have none.
_MASK_ARGUMENTS = frozenset([
    "batch_size", "q_length", "kv_length", "allow_is_causal_skip", "local_size", "dtype", "config", "use_vmap", "device",
])


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor] = None,
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[torch.Tensor] = None,
    longspan_rows: Optional[Rows] = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention. query: [B, N, T, H], key: [B, M, T, H], value: [B, M, T, V]. Returns [B, T, N, V] and None. Raises
    UsageError for each argument that is not supported, by name."""
    name = type(module).__name__
    if longspan_rows is None:
        raise UsageError(f"{name}: attention has no {ROWS}, so the documents of its rows are unknown: pass batches of the "
                         "loader that parallelize() returned as model(**batch)")
    if attention_mask is not None:
        raise UsageError(f"{name}: attention_mask {list(attention_mask.shape)}: only causal attention within documents is "
                         "supported; state documents by position_ids, and padding by the batch's attention_mask")
    if dropout:
        raise UsageError(f"{name}: dropout of attention is {dropout}, and must be 0: set config.attention_dropout = 0")
    if is_causal is False or (is_causal is None and getattr(module, "is_causal", True) is False):
        raise UsageError(f"{name}: is_causal is False, and only causal attention is supported")
    unknown = [name for name, given in others.items()
               if name not in _HARMLESS and given is not None and given is not False]
    if unknown:
        raise UsageError(f"{name}: attention has the arguments {', '.join(sorted(unknown))}, which longspan does not know")
    documents = longspan_rows.documents
    if len(documents) != query.shape[0]:
        raise UsageError(f"{name}: {query.shape[0]} rows, and the batch was cut with {len(documents)}")
    state = state_of(longspan_rows.key)
    # Gradient checkpointing computes layers in a backward.
    is_compared = state.in_forward or torch._C._current_graph_task_id() >= 0
    if not is_compared and torch.is_grad_enabled() and world_size() > 1:
        raise UsageError(f"{name}: attention runs outside of the forward of the model that parallelize() got, so nobody would "
                         "compute the mean of gradients: call this model as model(**batch), with output_hidden_states=True for "
                         "hidden states")
    sharing = state.sharing
    with calls_compared() if is_compared else contextlib.nullcontext():  # by the digests of batches, before the forward
        outs = [
            attend(query[b].transpose(0, 1), key[b].transpose(0, 1), value[b].transpose(0, 1), sharing=sharing,
                   documents=documents[b], scale=scaling, window=sliding_window, softcap=softcap,
                   sinks=None if s_aux is None else s_aux.to(query.dtype))
            for b in range(len(documents))
        ]
    return outs[0][None] if len(outs) == 1 else torch.stack(outs), None


def no_mask(
    *,
    mask_function: Any,
    attention_mask: Optional[torch.Tensor] = None,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    **others: Any,
) -> None:
    """Takes the place of transformers' makers of masks: attention knows documents and windows without a mask. Raises
    UsageError for a mask that is not causal with documents and a window."""
    if attention_mask is not None:
        raise UsageError(f"attention_mask {list(attention_mask.shape)} reached the model: pass batches of the loader that "
                         "parallelize() returned, which states padding by documents")
    if q_offset or kv_offset:
        raise UsageError(f"the model asks for a mask of tokens after {max(q_offset, kv_offset)} others: pass use_cache=False")
    if unknown := sorted({part.__qualname__ for part in _parts(mask_function)} - _CAUSAL_PARTS):
        raise UsageError(f"the model's mask has the parts {', '.join(unknown)}, and longspan supports only causal attention "
                         "within documents and windows")
    unknown = [name for name, given in others.items() if name not in _MASK_ARGUMENTS and given is not None]
    if unknown:
        raise UsageError(f"transformers asks for a mask with the arguments {', '.join(sorted(unknown))}, which longspan does "
                         "not know")


def _parts(mask_function: Any) -> Iterator[Any]:
    """A mask function of transformers and the functions that it combines, which its closure holds."""
    yield mask_function
    for cell in getattr(mask_function, "__closure__", None) or ():
        held = cell.cell_contents
        for function in held if isinstance(held, (list, tuple)) else [held]:
            if callable(function) and not isinstance(function, torch.Tensor):
                yield from _parts(function)


def install() -> None:
    """Registers the function under its name."""
    import transformers
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    if NAME in ALL_MASK_ATTENTION_FUNCTIONS:
        return
    transformers.AttentionInterface.register(NAME, outside_graphs(attention_forward))
    transformers.AttentionMaskInterface.register(NAME, no_mask)


def take_over(name: str) -> None:
    """Lets this attention run under another function's name as well: for batches that were cut."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name not in ALL_ATTENTION_FUNCTIONS:
        raise UsageError(f"takeover={name!r}: transformers has no attention of this name; it has "
                         f"{', '.join(sorted(ALL_ATTENTION_FUNCTIONS))}")
    attention, mask = ALL_ATTENTION_FUNCTIONS[name], ALL_MASK_ATTENTION_FUNCTIONS[name]
    if getattr(attention, "is_longspan", False):
        return
    own = outside_graphs(attention_forward)

    def attention_of_both(module: Any, *given: Any, **named: Any) -> Any:
        rows = named.get(ROWS)  # a vision tower, which has a config of another kind, gets them as well
        shares = shares_rows(module.config) if rows is None else type(module.config) is type(state_of(rows.key).config)
        return (own if shares else attention)(module, *given, **named)

    def mask_of_both(*, config: Any = None, **named: Any) -> Any:
        return no_mask(**named) if shares_rows(config) else mask(config=config, **named)

    attention_of_both.is_longspan = True  # pyright: ignore[reportFunctionMemberAccess]
    AttentionInterface.register(name, attention_of_both)
    AttentionMaskInterface.register(name, mask_of_both)
