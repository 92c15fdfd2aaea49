"""Models of pictures: each rank encodes all pictures of a row, and the language model runs on the rank's tokens.

B: rows, S: tokens of a whole row, T: tokens of this rank, I: tokens of pictures in all rows, D: elements of an embedding.
"""

from __future__ import annotations

from typing import Any

import torch

from longspan._rows import ROWS, take
from longspan._state import State, outside_graphs
from longspan.errors import UsageError

# Types of whole models (config.model_type) whose language model gets all embeddings and positions as arguments.
CHECKED_TYPES = frozenset(["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"])


def install(model: torch.nn.Module, state: State) -> None:
    """Cuts what the language model of a model of pictures gets."""

    def before_language_model(module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        rows, embeddings = named.get(ROWS), named.get("inputs_embeds")
        if state.unshared:
            return None
        if given or rows is None or rows.index is None or embeddings is None:
            raise UsageError(f"{type(module).__name__} got no embeddings of whole rows: pass batches of the loader that "
                             "parallelize() returned as model(**batch)")
        positions = named.get("position_ids")
        if positions is None:  # rows without pictures
            positions = torch.arange(embeddings.shape[1], device=embeddings.device).expand(3, *embeddings.shape[:2])
        state.largest_position = positions[-3:].max()
        # Time, height and width, [3, B, T]. A fourth axis before these states documents, which `rows` has.
        own = torch.stack([take(rows.index, axis, 0) for axis in positions[-3:]])
        cut = dict(inputs_embeds=take(rows.index, embeddings, 0), position_ids=own, attention_mask=None)
        if named.get("visual_pos_masks") is not None:
            cut |= _deep_features(rows.index, named["visual_pos_masks"], named["deepstack_visual_embeds"])
        return given, named | cut

    language_model: Any = model.get_decoder()  # pyright: ignore[reportCallIssue]
    language_model.register_forward_pre_hook(outside_graphs(before_language_model), with_kwargs=True)


def _deep_features(index: torch.Tensor, is_picture: torch.Tensor, features: list[torch.Tensor]) -> dict[str, Any]:
    """Qwen3-VL's features for the outputs of the first layers. is_picture: [B, S]. features: for each of these layers [I, D], in
    the order of the tokens of `is_picture`. Returns this rank's: [B, T], and its part of each layer's."""
    number = (is_picture.flatten().cumsum(0) - 1).view_as(is_picture)
    own = take(index, is_picture, False)
    places = take(index, number, 0)[own]
    return dict(visual_pos_masks=own, deepstack_visual_embeds=[layer[places] for layer in features])
