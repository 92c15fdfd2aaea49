"""Exchanges of tokens for heads around attention, and reductions over the ranks that share rows.

The names, arguments and results are those of VeOmni's functions of sequence parallelism. Here any number of heads is
possible: of N heads, rank r of P has the heads [r N / P, (r + 1) N / P), rounded down.

Every rank of a group calls the functions in the same order, with the same number of tokens. A rank's gradient is its own
part: the sum over the ranks is the gradient of a parameter. `group` None: the group of
set_ulysses_sequence_parallel_group(); without one, this process alone. `timeout`: seconds that a collective may take, as in
Sharing.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
import torch.distributed as dist
from torch.nn.functional import layer_norm, linear, pad, rms_norm

from longspan import _native
from longspan._projection import Parameters, Projection
from longspan.attention import DEFAULT_TIMEOUT, has_values, name_of, telling
from longspan.documents import whole
from longspan.errors import UsageError

_default_group: Optional[dist.ProcessGroup] = None


def set_ulysses_sequence_parallel_group(group: Optional[dist.ProcessGroup]) -> None:
    """Sets the group of functions that are called without one. None: this process alone."""
    global _default_group
    if group is not None:
        name_of(group)  # raises UsageError for what is no group
    _default_group = group


def get_ulysses_sequence_parallel_group() -> Optional[dist.ProcessGroup]:
    """Returns the group of functions that are called without one. None: this process alone."""
    return _default_group


class Work:
    """An exchange in flight. wait() returns its tensor, and is called once."""

    def __init__(self, exchange: Any, shape: Optional[tuple[int, int]], trimmed: Optional[tuple[int, int]]) -> None:
        self._exchange, self._shape, self._trimmed = exchange, shape, trimmed

    def wait(self) -> torch.Tensor:
        """Waits for the exchange. Raises UsageError at a second call, CommunicationError."""
        exchange = self._exchange
        x = exchange if isinstance(exchange, torch.Tensor) else _native.call("wait", exchange)
        if self._trimmed is not None:
            x = _trimmed(x, *self._trimmed)
        return x if self._shape is None else x.flatten(*self._shape)


def gather_seq_scatter_heads(
    x: torch.Tensor,
    seq_dim: int,
    head_dim: int,
    unpadded_dim_size: Optional[int] = 0,
    async_op: bool = False,
    group: Optional[dist.ProcessGroup] = None,
    *,
    head_size: int = 1,
    num_query_heads: int = 0,
    timeout: int = DEFAULT_TIMEOUT,
) -> Union[torch.Tensor, Work]:
    """Exchanges a part of the tokens of all heads for all tokens of a part of the heads, before attention.

    x: of any shape; dimension `seq_dim` has this rank's tokens, dimension `head_dim` the row's heads.
    unpadded_dim_size: tokens of the row without padding; later tokens are cut off. 0 or None: there is no padding.
    async_op: returns a Work, whose wait() returns the tensor.
    head_size: consecutive elements of dimension `head_dim` that make one head.
    num_query_heads: of keys and values with fewer heads than the queries, the number of query heads. The rank then gets the
        heads that its query heads use: each once if all ranks' query heads share them evenly, else one for each query head.

    Returns a contiguous tensor. A rank without a head gets a tensor without elements, which it must use in its loss, as every
    rank takes part in the backward. Raises UsageError, CommunicationError.
    """
    work = _start_to_heads(x, seq_dim, head_dim, unpadded_dim_size, async_op, group, head_size, num_query_heads, timeout)
    return work if async_op else work.wait()


def gather_heads_scatter_seq(
    x: torch.Tensor,
    head_dim: int,
    seq_dim: int,
    group: Optional[dist.ProcessGroup] = None,
    *,
    head_size: int = 1,
    num_heads: Optional[int] = None,
    timeout: int = DEFAULT_TIMEOUT,
) -> torch.Tensor:
    """Exchanges all tokens of a part of the heads for a part of the tokens of all heads, after attention.

    x: of any shape; dimension `head_dim` has this rank's heads, dimension `seq_dim` the row's tokens. Tokens that the ranks
        do not divide are padded with zeros.
    head_size: as in gather_seq_scatter_heads().
    num_heads: heads of the row. None: the ranks add up their heads, which costs a small exchange. In a graph of torch.compile
        None means that all ranks have as many heads as this one.

    Returns a contiguous tensor. Raises UsageError, CommunicationError.
    """
    name, place = _place_in(group)
    with _telling(group, x, timeout):
        x, head_dim, shape = _with_heads(x, head_dim, head_size)
        seq_dim = _from_front(x, seq_dim, shape)
        num_heads = None if num_heads is None else whole(num_heads, "num_heads")
    missing = -x.shape[seq_dim] % place[1]
    if missing:
        x = pad(x, [0, 0] * (x.dim() - 1 - seq_dim) + [0, missing])
    y = _native.call("heads_to_seq", x, name, place, head_dim, seq_dim, num_heads, 0, timeout)
    return y if shape is None else y.flatten(*shape)


def gather_seq_scatter_heads_qkv(
    qkv_tensor: torch.Tensor,
    seq_dim: int,
    unpadded_dim_size: Optional[int] = None,
    restore_shape: bool = True,
    async_op: bool = False,
    group: Optional[dist.ProcessGroup] = None,
    *,
    head_size: int = 1,
    timeout: int = DEFAULT_TIMEOUT,
) -> Union[torch.Tensor, Work]:
    """As gather_seq_scatter_heads(), for queries, keys and values of equal shapes, one after the other in the last dimension.

    restore_shape: returns as many dimensions as `qkv_tensor` has; else the last two are 3 and a rank's elements of one of
        the three.
    """
    with _telling(group, qkv_tensor, timeout):
        last = qkv_tensor.shape[-1]
        if head_size < 1 or last % (3 * head_size) != 0:
            raise UsageError(f"qkv_tensor's last dimension is {last}, and must be a multiple of 3 times head_size {head_size}")
        seq_dim = _from_front(qkv_tensor, seq_dim, None)
    three = qkv_tensor.unflatten(-1, (3, last // 3))
    work = _start_to_heads(three, seq_dim, three.dim() - 1, unpadded_dim_size, async_op, group, head_size, 0, timeout)
    if restore_shape:
        work._shape = (-3, -1) if head_size > 1 else (-2, -1)
    return work if async_op else work.wait()


def reduce_sequence_parallel_loss(
    loss: torch.Tensor, num_valid_tokens: Union[torch.Tensor, int], group: Optional[dist.ProcessGroup] = None, *,
    timeout: int = DEFAULT_TIMEOUT,
) -> torch.Tensor:
    """Returns sum_r loss_r n_r / max(sum_r n_r, 1), the mean of all ranks' losses by their numbers of tokens n_r.

    loss: mean over this rank's valid tokens, a scalar. A rank with num_valid_tokens 0 contributes 0, also if its loss is NaN.
    All ranks get the same result. The gradient of a rank's loss is n_r / max(sum_r n_r, 1): the sum of the ranks' gradients is
    the gradient of the result. Raises UsageError, CommunicationError.
    """
    with _telling(group, loss, timeout):
        if loss.numel() != 1:
            raise UsageError(f"loss has the shape {list(loss.shape)}: pass one number")
        count = torch.as_tensor(num_valid_tokens, device=loss.device).detach().to(torch.double)
        if count.numel() != 1:
            raise UsageError(f"num_valid_tokens has the shape {list(count.shape)}: pass one number")
        count = count.reshape(())
    own = torch.where(count > 0, loss.reshape(()).to(torch.double), 0.0) * count
    name, _ = _place_in(group)
    if has_values(loss):
        _native.call("compare_calls", "reduces a loss", "", name, loss.is_cuda, timeout)
    total, tokens = _native.call("sum_of_ranks", torch.stack([own, count]), name, timeout).unbind()
    return (total / tokens.detach().clamp(min=1)).to(loss.dtype).reshape(loss.shape)


def async_ulysses_qkv_projection(
    hidden_states: torch.Tensor,
    seq_dimension: int,
    head_dimension: int,
    q_weight: torch.Tensor,
    q_bias: Optional[torch.Tensor],
    k_weight: torch.Tensor,
    k_bias: Optional[torch.Tensor],
    v_weight: torch.Tensor,
    v_bias: Optional[torch.Tensor],
    norm_type: Optional[str] = None,
    norm_q_weight: Optional[torch.Tensor] = None,
    norm_q_bias: Optional[torch.Tensor] = None,
    norm_k_weight: Optional[torch.Tensor] = None,
    norm_k_bias: Optional[torch.Tensor] = None,
    normalized_shape: Optional[Union[int, list[int], torch.Size]] = None,
    eps: float = 1e-5,
    unpadded_dim_size: Optional[int] = 0,
    head_dim: int = 0,
    group: Optional[dist.ProcessGroup] = None,
    *,
    timeout: int = DEFAULT_TIMEOUT,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Projects hidden states to queries, keys and values, and exchanges tokens for heads.

    The exchange of each projection runs under the next projection, in the backward too.

    hidden_states: [batch, tokens of this rank, dim]. seq_dimension and head_dimension: of the results
        [batch, tokens of the row, heads of this rank, head_dim], so 1 and 2.
    norm_type: "rmsnorm" or "layernorm" of queries and keys, after the exchange. The gradients of the norm's weights are this
        rank's part. Arguments of a norm that norm_type does not have are refused.
    normalized_shape: of the norm; None: head_dim. eps: of the norm.
    unpadded_dim_size: as in gather_seq_scatter_heads().
    head_dim: elements of a head.

    Keys and values can have fewer heads than queries (num_query_heads in gather_seq_scatter_heads()). Raises UsageError,
    CommunicationError.
    """
    with _telling(group, hidden_states, timeout):
        if norm_type not in (None, "rmsnorm", "layernorm"):
            raise UsageError(f"norm_type is {norm_type!r}, and must be None, 'rmsnorm' or 'layernorm'")
        norm_biases = dict(norm_q_bias=norm_q_bias, norm_k_bias=norm_k_bias)
        norm_weights = dict(norm_q_weight=norm_q_weight, norm_k_weight=norm_k_weight)
        unused: dict[str, Any] = dict(norm_biases) if norm_type != "layernorm" else {}
        if norm_type is None:
            unused |= dict(norm_weights, normalized_shape=normalized_shape)
        for name, value in unused.items():
            if value is not None:
                raise UsageError(f"{name} is given, and norm_type {norm_type!r} does not use it: leave it out, or pass another "
                                 "norm_type")
        for name, weight, bias in (("q", q_weight, q_bias), ("k", k_weight, k_bias), ("v", v_weight, v_bias)):
            _check_weight(f"{name}_weight", weight, f"{name}_bias", bias, hidden_states.shape[-1])
            if head_dim < 1 or weight.shape[0] % head_dim != 0:
                raise UsageError(f"{name}_weight makes {weight.shape[0]} elements: head_dim is {head_dim}, and must be positive and "
                                 "divide them")
        shape = head_dim if normalized_shape is None else normalized_shape
        sizes = [shape] if isinstance(shape, int) else list(shape)
        if norm_type is not None and sizes[-1:] != [head_dim]:
            raise UsageError(f"normalized_shape is {sizes}, and must end with head_dim, {head_dim}")
        for name, value in (norm_weights | norm_biases).items():
            if value is not None and list(value.shape) != sizes:
                raise UsageError(f"{name} has the shape {list(value.shape)}, and must have the shape {sizes} of the norm")
    num_queries = q_weight.shape[0] // head_dim
    works = []
    for weight, bias in ((q_weight, q_bias), (k_weight, k_bias), (v_weight, v_bias)):
        with _telling(group, hidden_states, timeout):
            x = linear(hidden_states, weight, bias).unflatten(-1, (-1, head_dim))
        works.append(_start_to_heads(x, seq_dimension, head_dimension, unpadded_dim_size, True, group, 1, num_queries, timeout))
    q, k, v = (work.wait() for work in works)
    if norm_type is None:
        return q, k, v
    if norm_type == "rmsnorm":
        return rms_norm(q, sizes, norm_q_weight, eps), rms_norm(k, sizes, norm_k_weight, eps), v
    return layer_norm(q, sizes, norm_q_weight, norm_q_bias, eps), layer_norm(k, sizes, norm_k_weight, norm_k_bias, eps), v


def async_ulysses_output_projection(
    hidden_states: torch.Tensor,
    seq_dimension: int,
    head_dimension: int,
    proj_weight: torch.Tensor,
    proj_bias: Optional[torch.Tensor],
    unpadded_dim_size: Optional[int] = 0,
    group: Optional[dist.ProcessGroup] = None,
    *,
    timeout: int = DEFAULT_TIMEOUT,
) -> torch.Tensor:
    """Exchanges heads for tokens, and projects the attention's output.

    In the backward, the exchange runs under the gradient of the weight.

    hidden_states: [batch, tokens of the row, heads of this rank, head_dim], or, if the ranks divide the heads, [batch, tokens of
        the row, heads of this rank * head_dim]. Returns [batch, tokens of this rank, dim].
    unpadded_dim_size: tokens of the row without padding; 0 or None: all of hidden_states'. Raises UsageError,
        CommunicationError.
    """
    name, place = _place_in(group)
    with _telling(group, hidden_states, timeout):
        seq_dim, is_flat = _from_front(hidden_states, seq_dimension, None), hidden_states.dim() == 3
        tokens, head_size = hidden_states.shape[seq_dim], 1 if is_flat else hidden_states.shape[-1]
        if unpadded_dim_size and tokens != unpadded_dim_size:
            raise UsageError(f"hidden_states has {tokens} tokens, and unpadded_dim_size is {unpadded_dim_size}: they must be equal")
        _check_weight("proj_weight", proj_weight, "proj_bias", proj_bias, None)
        if proj_weight.shape[1] % head_size != 0:
            raise UsageError(f"proj_weight takes {proj_weight.shape[1]} elements, which heads of {head_size} do not divide")
    x = pad(hidden_states, [0, 0] * (hidden_states.dim() - 1 - seq_dim) + [0, -tokens % place[1]])
    num_heads = proj_weight.shape[1] // head_size
    if torch.compiler.is_compiling():
        y = _native.call("heads_to_seq", x, name, place, head_dimension, seq_dim, num_heads, 0, timeout)
        return linear(y if is_flat else y.flatten(-2), proj_weight, proj_bias)
    exchange = _native.call("start_heads_to_seq", x, name, place, head_dimension, seq_dim, num_heads, timeout)
    # Autograd runs nodes in the reverse order of their creation: Parameters after the exchange has been started, before it
    # is waited for.
    later: list[Optional[torch.Tensor]] = [None, None]
    weight, bias = _native.autocast(proj_weight), None if proj_bias is None else _native.autocast(proj_bias)
    weight, bias = Parameters.apply(weight, bias, later)
    y = _native.call("wait", exchange)
    x = _native.autocast(y if is_flat else y.flatten(-2))
    return Projection.apply(x, weight, bias, later)


class DistributedAttention(torch.nn.Module):
    """Any attention of whole rows between the exchanges, with the arguments of DeepSpeed's module of this name.

    local_attention: called with q, k, v of all tokens and of this rank's heads, and further arguments; its result has the
        layout of q.
    sequence_process_group: None: as `group` of the functions.
    scatter_idx: dimension of the heads. gather_idx: dimension of the tokens.
    num_kv_heads: heads of keys and values; None: those of k. sp_stream: DeepSpeed's, and not needed, as exchanges are in flight
        together.

    Query heads are a multiple of the heads of keys and values, and both can be any number. forward() takes DeepSpeed's
    batch_dim_idx, the third dimension, and does not need it. rotary_pos_emb must be None. Raises UsageError,
    CommunicationError.
    """

    def __init__(self, local_attention: Callable[..., torch.Tensor], sequence_process_group: Optional[dist.ProcessGroup],
                 scatter_idx: int = 2, gather_idx: int = 0, sp_stream: Any = None, num_kv_heads: Optional[int] = None, *,
                 timeout: int = DEFAULT_TIMEOUT) -> None:
        super().__init__()
        del sp_stream
        self.timeout, self.num_kv_heads = timeout, num_kv_heads
        self.local_attn, self.spg = local_attention, sequence_process_group
        self.scatter_idx, self.gather_idx = scatter_idx, gather_idx

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch_dim_idx: Optional[int] = None,
                rotary_pos_emb: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        with _telling(self.spg, query, self.timeout):
            self._check(query, key, batch_dim_idx, rotary_pos_emb)
        heads = query.shape[self.scatter_idx]
        q, k, v = [_start_to_heads(x, self.gather_idx, self.scatter_idx, 0, True, self.spg, 1, heads, self.timeout)
                   for x in (query, key, value)]
        out = self.local_attn(q.wait(), k.wait(), v.wait(), *args, **kwargs)
        return gather_heads_scatter_seq(out, self.scatter_idx, self.gather_idx, self.spg, num_heads=heads,
                                        timeout=self.timeout)

    def _check(self, query: torch.Tensor, key: torch.Tensor, batch_dim_idx: Optional[int], rotary_pos_emb: Any) -> None:
        tokens, heads = (_from_front(query, dim, None) for dim in (self.gather_idx, self.scatter_idx))
        if batch_dim_idx is not None and _from_front(query, batch_dim_idx, None) in (tokens, heads):
            raise UsageError(f"batch_dim_idx is {batch_dim_idx}, and dimension {tokens} has the tokens (gather_idx), dimension "
                             f"{heads} the heads (scatter_idx): the three must differ")
        kv_heads = key.shape[_from_front(key, self.scatter_idx, None)]
        if self.num_kv_heads not in (None, kv_heads):
            raise UsageError(f"num_kv_heads is {self.num_kv_heads}, and key {list(key.shape)} has {kv_heads} heads in dimension "
                             f"{heads} (scatter_idx): pass the number of its heads, or leave num_kv_heads out")
        if rotary_pos_emb is not None:
            raise UsageError("rotary_pos_emb is not supported: rotate q and k of this rank's tokens before the call, and leave it "
                             "out")


def _start_to_heads(x: torch.Tensor, seq_dim: int, head_dim: int, unpadded: Optional[int], in_flight: bool,
                    group: Optional[dist.ProcessGroup], head_size: int, num_queries: int, timeout: int) -> Work:
    name, place = _place_in(group)
    unpadded = 0 if unpadded is None else unpadded
    with _telling(group, x, timeout):
        if not isinstance(in_flight, bool):
            raise UsageError(f"async_op is {in_flight!r}, and must be True or False: pass a group as group=")
        x, head_dim, shape = _with_heads(x, head_dim, head_size)
        seq_dim = _from_front(x, seq_dim, shape)
        num_queries, unpadded = whole(num_queries, "num_query_heads"), whole(unpadded, "unpadded_dim_size")
        num_tokens = x.shape[seq_dim] * place[1]
        if unpadded < 0 or unpadded > num_tokens:
            raise UsageError(f"unpadded_dim_size is {unpadded}: it must be from 0 to the {num_tokens} tokens of the ranks")
    operator = "start_seq_to_heads" if in_flight and not torch.compiler.is_compiling() else "seq_to_heads"
    exchange = _native.call(operator, x, name, place, seq_dim, head_dim, num_queries, timeout)
    return Work(exchange, shape, (seq_dim, unpadded) if unpadded else None)


def _place_in(group: Optional[dist.ProcessGroup]) -> tuple[str, list[int]]:
    """A group's name, and this process's rank in it and its size."""
    group = _default_group if group is None else group
    return name_of(group), [0, 1] if group is None else [group.rank(), group.size()]


def _telling(group: Optional[dist.ProcessGroup], x: torch.Tensor, timeout: int) -> Any:
    return telling(_default_group if group is None else group, x, timeout)


def _check_weight(name: str, weight: torch.Tensor, bias_name: str, bias: Optional[torch.Tensor], dim: Optional[int]) -> None:
    """`dim`: elements that the weight takes; None: any number."""
    if weight.dim() != 2 or dim not in (None, weight.shape[-1]):
        takes = "elements" if dim is None else str(dim)
        raise UsageError(f"{name} has the shape {list(weight.shape)}, and must be [elements, {takes}]")
    if bias is not None and list(bias.shape) != [weight.shape[0]]:
        raise UsageError(f"{bias_name} has the shape {list(bias.shape)}, and {name} {list(weight.shape)}: the bias must be "
                         f"[{weight.shape[0]}]")


def _with_heads(x: torch.Tensor, head_dim: int, head_size: int) -> tuple[torch.Tensor, int, Optional[tuple[int, int]]]:
    """x with the heads in a dimension of their own, that dimension, and the dimensions to flatten afterwards."""
    head_dim = _from_front(x, head_dim, None)
    if head_size == 1:
        return x, head_dim, None
    if head_size < 1 or x.shape[head_dim] % head_size != 0:
        raise UsageError(f"head_size is {head_size}, and must be positive and divide the {x.shape[head_dim]} elements of dimension "
                         f"{head_dim}")
    return x.unflatten(head_dim, (-1, head_size)), head_dim, (head_dim, head_dim + 1)


def _from_front(x: torch.Tensor, dim: int, shape: Optional[tuple[int, int]]) -> int:
    """A dimension counted from the front, in x; `dim`: before the heads got a dimension of their own."""
    dims = x.dim() - (shape is not None)
    if not -dims <= dim < dims:
        raise UsageError(f"a dimension is {dim}, and the tensor has {dims} dimensions")
    dim %= dims
    return dim + 1 if shape is not None and dim > shape[0] else dim


def _trimmed(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return x if x.shape[dim] <= size else x.narrow(dim, 0, size).contiguous()
