"""Gated delta networks (Qwen3-Next, Qwen3.5) over rows that ranks share. Either each rank computes all tokens of some heads, or
each rank computes some consecutive tokens, and states pass from rank to rank.

t: tokens of this rank, T: tokens of the padded row, M: key heads, N: value heads, m, n: those of this rank, K, V: elements of
a head, J: channels of the convolution, 2 M K + N V.
"""

from __future__ import annotations

import sys
import types
from typing import Any, Optional

import torch

from longspan import _native
from longspan._registry import state_of, state_of_model
from longspan._rows import ROWS, Rows
from longspan._state import State, outside_graphs
from longspan.errors import UsageError

_CLASSES = frozenset(["Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet"])


def check(model: torch.nn.Module, config: Any) -> None:
    """Raises UsageError for recurrent layers that are not known."""
    count, found = list(getattr(config, "layer_types", None) or []).count("linear_attention"), _layers_of(model)
    if len(found) != count:
        raise UsageError(f"{config.model_type}: {count} layers have linear attention, and {len(found)} of them are of a kind that "
                         f"longspan knows ({', '.join(sorted(_CLASSES))})")


def _layers_of(model: torch.nn.Module) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ in _CLASSES]


def install(model: torch.nn.Module, state: State, num_tokens: int) -> None:
    """Replaces the forward of a model's recurrent layers, which check() has accepted. The plan for rows of `num_tokens` tokens
    decides how the ranks share these layers."""
    found = _layers_of(model)
    state.passes_states = all(_can_pass_states(layer) for layer in found) and len(found) > 0 and _native.call(
        "passes_states", _net_of(found[0]), found[0].conv_kernel_size, state.sharing.name, state.sharing.mode,
        list(state.sharing.degrees), list(state.cutter.heads), num_tokens, found[0].conv1d.weight.dtype.itemsize,
        found[0].conv1d.weight.is_cuda)
    forward = outside_graphs(_forward)
    for layer in found:
        layer._longspan_key = state.key
        layer.forward = types.MethodType(forward, layer)


def _forward(
    layer: Any,
    hidden_states: torch.Tensor,
    cache_params: Any = None,
    attention_mask: Optional[torch.Tensor] = None,
    **others: Any,
) -> torch.Tensor:
    """hidden_states: [B, t, hidden_size], as the result."""
    rows = others.get(ROWS)
    if not isinstance(rows, Rows):
        if state_of_model(layer).unshared:
            return type(layer).forward(layer, hidden_states, cache_params=cache_params, attention_mask=attention_mask,
                                       **others)
        raise UsageError(f"{type(layer).__name__} has no {ROWS}: pass batches of the loader that parallelize() returned as "
                         "model(**batch)")
    if cache_params is not None or attention_mask is not None:
        raise UsageError(f"{type(layer).__name__} has a cache or a mask, which is not possible on parts of rows")
    mixed, z, b, a = _projections(layer, hidden_states)
    state = state_of(rows.key)
    row = _row_by_states if state.passes_states else _row_by_heads
    outs = torch.stack([row(layer, state, mixed[i], b[i], a[i], rows.documents[i]) for i in range(len(mixed))])
    outs = layer.norm(outs.reshape(-1, layer.head_v_dim), z.reshape(-1, layer.head_v_dim))
    return layer.out_proj(outs.reshape(*hidden_states.shape[:2], -1))


def _projections(layer: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns inputs of the convolution [B, t, J], z [B, t, N, V], b and a [B, t, N]."""
    if hasattr(layer, "in_proj_qkvz"):
        *parts, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(hidden), layer.in_proj_ba(hidden))
        return torch.cat([x.flatten(2) for x in parts], -1), z, b, a
    z = layer.in_proj_z(hidden).unflatten(-1, (-1, layer.head_v_dim))
    return layer.in_proj_qkv(hidden), z, layer.in_proj_b(hidden), layer.in_proj_a(hidden)


def _net_of(layer: Any) -> list[int]:
    return [layer.num_k_heads, layer.num_v_heads, layer.head_k_dim, layer.head_v_dim]


def _can_pass_states(layer: Any) -> bool:
    """Whether longspan's operator computes the layer's function."""
    return layer.activation in ("silu", "swish") and layer.conv1d.bias is None


def _where(state: State, documents: tuple[int, ...]) -> tuple[Any, ...]:
    sharing = state.sharing
    return list(documents), sharing.name, sharing.mode, list(sharing.degrees), list(state.cutter.heads), sharing.timeout


def _row_by_states(
    layer: Any, state: State, mixed: torch.Tensor, b: torch.Tensor, a: torch.Tensor, documents: tuple[int, ...]
) -> torch.Tensor:
    """mixed: [t, J], b, a: [t, N]. Returns [t, N, V]."""
    return _native.call("gated_delta_net", mixed, a, b, layer.conv1d.weight, layer.A_log, layer.dt_bias, _net_of(layer),
                        *_where(state, documents))


def _row_by_heads(
    layer: Any, state: State, mixed: torch.Tensor, b: torch.Tensor, a: torch.Tensor, documents: tuple[int, ...]
) -> torch.Tensor:
    """As _row_by_states(), by transformers' functions."""
    sharing, where = state.sharing, _where(state, documents)
    queries, keys, values = (x.unflatten(-1, (-1, size)) for x, size in zip(
        mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], -1),
        (layer.head_k_dim, layer.head_k_dim, layer.head_v_dim)))
    of_keys = torch.cat([queries, keys], -1)  # [t, M, 2 K]
    of_values = torch.cat([values, b[..., None], a[..., None]], -1)  # [t, N, V + 2]
    of_values, of_keys = _native.call("tokens_to_heads", [of_values, of_keys], *where)
    begin, count, first, num_keys = _native.call("share_of_heads", sharing.rank, sharing.size, layer.num_v_heads,
                                                 layer.num_k_heads)
    key_size, value_size = layer.head_k_dim, layer.head_v_dim  # K, V
    weight, conv_bias = layer.conv1d.weight.squeeze(1), layer.conv1d.bias
    starts = [first * key_size, layer.key_dim + first * key_size, 2 * layer.key_dim + begin * value_size]
    sizes = [num_keys * key_size, num_keys * key_size, count * value_size]
    channels = torch.cat([torch.arange(start, start + size, device=weight.device) for start, size in zip(starts, sizes)])
    weights, biases = weight[channels], None if conv_bias is None else conv_bias[channels]
    decay, bias = layer.A_log[begin:begin + count].float().exp(), layer.dt_bias[begin:begin + count]
    if count == 0:  # fewer heads than ranks; all ranks take part in the exchanges, and all parameters have gradients
        parameters = [weight, layer.A_log, layer.dt_bias] + [conv_bias] * (conv_bias is not None)
        nothing = (of_keys.sum() + sum(x.sum() for x in parameters)) * 0
        outs = of_values[..., :value_size] + nothing.to(of_values.dtype)
        return _native.call("heads_to_tokens", outs, layer.num_v_heads, *where)
    queries, keys = of_keys.split([key_size, key_size], -1)
    values, b, a = of_values.split([value_size, 1, 1], -1)
    mixed = torch.cat([x.flatten(1) for x in (queries, keys, values)], -1).t()[None]  # [1, channels, T]
    beta = b.squeeze(-1).sigmoid()[None]
    g = (-decay * torch.nn.functional.softplus(a.squeeze(-1).float() + bias))[None]
    # For each value head, the place of its key head among this rank's.
    owner = torch.arange(begin, begin + count, device=mixed.device) * layer.num_k_heads // layer.num_v_heads - first
    functions = sys.modules[type(layer).__module__]
    outs, start = [], 0
    for length in documents:
        part = slice(start, start + length)
        start += length
        convolved = functions.causal_conv1d_fn(mixed[..., part], weights, biases, activation=layer.activation)
        q, k, v = (x.transpose(1, 2).unflatten(-1, (-1, size)) for x, size in zip(
            convolved.split(sizes, 1), (key_size, key_size, value_size)))
        out, _ = functions.torch_chunk_gated_delta_rule(
            q.index_select(2, owner), k.index_select(2, owner), v, g=g[:, part], beta=beta[:, part], initial_state=None,
            output_final_state=False, use_qk_l2norm_in_kernel=True)
        outs.append(out[0])
    return _native.call("heads_to_tokens", torch.cat(outs), layer.num_v_heads, *where)
