"""Shapes of the operators' results, for fake tensors, meta tensors and torch.compile."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes


def _changed(x: torch.Tensor, sizes: dict[int, int] = {}) -> torch.Tensor:
    """A contiguous tensor like x with other sizes."""
    return x.new_empty([sizes.get(dim, size) for dim, size in enumerate(x.shape)])


@torch.library.register_fake("longspan::attend")
def _(q, k, v, sinks, documents, group, method, degrees, scale, window, softcap, timeout):
    return q.new_empty([q.shape[0], q.shape[1], v.shape[2]])


@torch.library.register_fake("longspan::attend_backward")
def _(grad, q, k, v, sinks, documents, group, method, degrees, scale, window, softcap, timeout):
    return _changed(q), _changed(k), _changed(v), q.new_empty([0]) if sinks is None else _changed(sinks)


@torch.library.register_fake("longspan::seq_to_heads")
def _(x, group, place, seq_dim, head_dim, num_queries, timeout):
    with _disable_current_modes():
        heads = torch.ops.longspan.heads_here.default(place, int(x.shape[head_dim]), num_queries)
    return _changed(x, {seq_dim % x.dim(): x.shape[seq_dim] * place[1], head_dim % x.dim(): heads})


@torch.library.register_fake("longspan::heads_to_seq")
def _(x, group, place, head_dim, seq_dim, num_heads, num_queries, timeout):
    heads = x.shape[head_dim] * place[1] if num_heads is None else num_heads
    return _changed(x, {seq_dim % x.dim(): x.shape[seq_dim] // place[1], head_dim % x.dim(): heads})


@torch.library.register_fake("longspan::sum_of_ranks")
def _(x, group, timeout):
    return _changed(x)


@torch.library.register_fake("longspan::token_losses")
def _(x, weight, labels, ignore_index, softcap):
    dtype = torch.double if x.dtype == torch.double else torch.float
    return x.new_empty([x.shape[0]], dtype=dtype), x.new_empty([x.shape[0]], dtype=torch.double)


@torch.library.register_fake("longspan::token_losses_backward")
def _(grad, x, weight, labels, lse, ignore_index, softcap):
    return _changed(x), _changed(weight)


@torch.library.register_fake("longspan::gated_delta_net")
def _(x, a, b, conv, a_log, dt_bias, net, documents, group, method, degrees, heads, timeout):
    return x.new_empty([x.shape[0], net[1], net[3]])


@torch.library.register_fake("longspan::gated_delta_net_backward")
def _(grad, x, a, b, conv, a_log, dt_bias, net, documents, group, method, degrees, heads, timeout):
    return tuple(_changed(tensor) for tensor in (x, a, b, conv, a_log, dt_bias))


@torch.library.register_fake("longspan::rms_norm")
def _(x, weight, eps):
    y = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, weight.dtype))
    return y, x.new_empty([x.numel() // x.shape[-1]], dtype=torch.double if x.dtype == torch.double else torch.float)


@torch.library.register_fake("longspan::rms_norm_backward")
def _(grad, x, rstd, weight):
    return _changed(x), _changed(weight)


@torch.library.register_fake("longspan::swiglu")
def _(gate, up):
    return _changed(gate)


@torch.library.register_fake("longspan::swiglu_backward")
def _(grad, gate, up):
    return _changed(gate), _changed(up)
