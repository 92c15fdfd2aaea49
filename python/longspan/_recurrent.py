"""Gated delta networks (Qwen3-Next, Qwen3.5) over rows that ranks share: each rank computes all tokens of some heads.

t: tokens of this rank, T: tokens of the padded row, M: key heads, N: value heads, m, n: those of this rank, K, V: elements of
a head.
"""

from __future__ import annotations

import sys
import types
from typing import Any, Optional

import torch

from longspan import _native
from longspan._rows import ROWS, Rows
from longspan._state import State, outside_graphs
from longspan.errors import UsageError

_CLASSES = frozenset(["Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet"])


def install(model: torch.nn.Module, state: State) -> None:
    """Replaces the forward of a model's recurrent layers. Raises UsageError for layers that are not known."""
    types_of_layers = getattr(state.config, "layer_types", None) or []
    found = [module for module in model.modules() if type(module).__name__ in _CLASSES]
    if len(found) != list(types_of_layers).count("linear_attention"):
        raise UsageError(f"{state.config.model_type}: {list(types_of_layers).count('linear_attention')} layers have linear "
                         f"attention, and {len(found)} of them are of a kind that longspan knows ({', '.join(sorted(_CLASSES))})")
    forward = outside_graphs(_forward)
    for layer in found:
        layer._longspan_key = state.key  # pyright: ignore[reportArgumentType]
        layer.forward = types.MethodType(forward, layer)


def _forward(
    layer: Any,
    hidden_states: torch.Tensor,
    cache_params: Any = None,
    attention_mask: Optional[torch.Tensor] = None,
    **others: Any,
) -> torch.Tensor:
    """hidden_states: [B, t, hidden_size], as the result."""
    from longspan.parallelize import state_of, state_of_model

    rows = others.get(ROWS)
    if not isinstance(rows, Rows):
        if state_of_model(layer).unshared:
            return type(layer).forward(layer, hidden_states, cache_params=cache_params, attention_mask=attention_mask,
                                       **others)
        raise UsageError(f"{type(layer).__name__} has no {ROWS}: pass batches of the loader that parallelize() returned as "
                         "model(**batch)")
    if cache_params is not None or attention_mask is not None:
        raise UsageError(f"{type(layer).__name__} has a cache or a mask, which is not possible on parts of rows")
    queries, keys, values, z, b, a = _projections(layer, hidden_states)
    of_keys = torch.cat([queries, keys], -1)
    of_values = torch.cat([values, b[..., None], a[..., None]], -1)
    state = state_of(rows.key)
    outs = torch.stack([_row(layer, state, of_keys[i], of_values[i], rows.documents[i]) for i in range(len(of_keys))])
    outs = layer.norm(outs.reshape(-1, layer.head_v_dim), z.reshape(-1, layer.head_v_dim))
    return layer.out_proj(outs.reshape(*hidden_states.shape[:2], -1))


def _projections(layer: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns queries and keys [B, t, M, K], values and z [B, t, N, V], b and a [B, t, N]."""
    if hasattr(layer, "in_proj_qkvz"):
        return layer.fix_query_key_value_ordering(layer.in_proj_qkvz(hidden), layer.in_proj_ba(hidden))
    mixed = layer.in_proj_qkv(hidden).split([layer.key_dim, layer.key_dim, layer.value_dim], -1)
    queries, keys = (x.unflatten(-1, (-1, layer.head_k_dim)) for x in mixed[:2])
    z = layer.in_proj_z(hidden).unflatten(-1, (-1, layer.head_v_dim))
    values = mixed[2].unflatten(-1, (-1, layer.head_v_dim))
    return queries, keys, values, z, layer.in_proj_b(hidden), layer.in_proj_a(hidden)


def _row(
    layer: Any, state: State, of_keys: torch.Tensor, of_values: torch.Tensor, documents: tuple[int, ...]
) -> torch.Tensor:
    """of_keys: queries and keys [t, M, 2 K]. of_values: values, b and a [t, N, V + 2]. Returns [t, N, V]."""
    sharing = state.sharing
    where = (list(documents), sharing.name, sharing.mode, list(sharing.degrees), list(state.cutter.heads), sharing.timeout)
    of_values, of_keys = _native.call("tokens_to_heads", [of_values, of_keys], *where)
    begin, count, first, num_keys = _native.call("share_of_heads", sharing.rank, sharing.size, layer.num_v_heads,
                                                 layer.num_k_heads)
    K, V = layer.head_k_dim, layer.head_v_dim
    weight = layer.conv1d.weight.squeeze(1)
    starts = [first * K, layer.key_dim + first * K, 2 * layer.key_dim + begin * V]
    sizes = [num_keys * K, num_keys * K, count * V]
    weights = torch.cat([weight[start:start + size] for start, size in zip(starts, sizes)])
    decay, bias = layer.A_log[begin:begin + count].float().exp(), layer.dt_bias[begin:begin + count]
    if count == 0:  # fewer heads than ranks; all ranks take part in the exchanges, and all parameters have gradients
        nothing = (of_keys.sum() + weight.sum() + layer.A_log.sum() + layer.dt_bias.sum()) * 0
        return _native.call("heads_to_tokens", of_values[..., :V] + nothing.to(of_values.dtype), layer.num_v_heads, *where)
    queries, keys = of_keys.split([K, K], -1)
    values, b, a = of_values.split([V, 1, 1], -1)
    mixed = torch.cat([x.flatten(1) for x in (queries, keys, values)], -1).t()[None]  # [1, channels, T]
    beta = b.squeeze(-1).sigmoid()[None]
    g = (-decay * torch.nn.functional.softplus(a.squeeze(-1).float() + bias))[None]
    # Of each value head, the place of its key head among this rank's.
    owner = torch.arange(begin, begin + count, device=mixed.device) * layer.num_k_heads // layer.num_v_heads - first
    functions = sys.modules[type(layer).__module__]
    outs, start = [], 0
    for length in documents:
        part = slice(start, start + length)
        start += length
        convolved = functions.causal_conv1d_fn(mixed[..., part], weights, layer.conv1d.bias, activation=layer.activation)
        q, k, v = (x.transpose(1, 2).unflatten(-1, (-1, size)) for x, size in zip(convolved.split(sizes, 1), (K, K, V)))
        out, _ = functions.torch_chunk_gated_delta_rule(
            q.index_select(2, owner), k.index_select(2, owner), v, g=g[:, part], beta=beta[:, part], initial_state=None,
            output_final_state=False, use_qk_l2norm_in_kernel=True)
        outs.append(out[0])
    return _native.call("heads_to_tokens", torch.cat(outs), layer.num_v_heads, *where)
