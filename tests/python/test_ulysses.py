"""Exchanges of heads and tokens on several ranks, beside one process that has the whole row."""

import inspect
import math

import pytest
import torch
from forks import run_forks

UNITS = 2.0**-53


def heads_of(rank, size, heads):
    return slice(rank * heads // size, (rank + 1) * heads // size)


def tokens_of(rank, size, x, dim=1):
    """This rank's tokens of a row, padded with zeros."""
    padded = torch.nn.functional.pad(x, [0, 0] * (x.dim() - 1 - dim) + [0, -x.shape[dim] % size])
    return padded.chunk(size, dim)[rank].detach().clone()


def slope_error(function, inputs, share=1.0):
    """Relative difference of the directional derivative of the sum of all ranks' function(*inputs) * share by autograd (the sum
    of all ranks' gradients, without the factor) and by differences."""
    import torch.distributed as dist

    def total(sign):
        with torch.no_grad():
            value = function(*(x + sign * 1e-6 * d for x, d in zip(inputs, directions))).clone()
        dist.all_reduce(value)
        return value

    directions = [torch.randn_like(x) for x in inputs]
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    gradients = torch.autograd.grad(function(*leaves), leaves)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions))
    dist.all_reduce(slope)
    by_differences = (total(1) - total(-1)) * share / 2e-6
    return ((slope - by_differences).abs() / slope.abs()).item()


def exchanges(rank, size, heads):
    import longspan

    torch.manual_seed(0)
    group = torch.distributed.group.WORLD
    tokens = 11
    row = torch.randn(2, tokens, heads, 3, dtype=torch.double)
    own = tokens_of(rank, size, row)
    here = row[:, :, heads_of(rank, size, heads)]
    keys = dict(seq_dim=1, head_dim=2, group=group)
    assert torch.equal(longspan.gather_seq_scatter_heads(own, unpadded_dim_size=tokens, **keys), here)
    assert longspan.gather_seq_scatter_heads(own, unpadded_dim_size=None, **keys).shape[1] == own.shape[1] * size
    padded = longspan.gather_seq_scatter_heads(own, **keys)
    assert padded.shape[1] == own.shape[1] * size and padded.is_contiguous() and torch.equal(padded[:, :tokens], here)
    works = [longspan.gather_seq_scatter_heads(x, unpadded_dim_size=tokens, async_op=True, **keys) for x in (own, -own)]
    assert torch.equal(works[0].wait(), here) and torch.equal(works[1].wait(), -here)
    with pytest.raises(longspan.UsageError, match="called before"):
        works[0].wait()
    work = longspan.gather_seq_scatter_heads(own.clone().requires_grad_(), async_op=True, **keys)
    node = work.wait().grad_fn
    while "FinishToHeads" not in node.name():  # the exchange was in flight, and its backward will be
        node = node.next_functions[0][0]
    for num_heads in (None, heads):
        back = longspan.gather_heads_scatter_seq(here.clone(), 2, 1, group, num_heads=num_heads)
        assert torch.equal(back, own) and back.is_contiguous()
    # Heads that are a part of a dimension, before the tokens, counted from the end.
    flat = own.flatten(2).transpose(1, 2)
    there = longspan.gather_seq_scatter_heads(flat, -1, -2, tokens, head_size=3, group=group)
    assert torch.equal(there, here.flatten(2).transpose(1, 2))
    assert torch.equal(longspan.gather_heads_scatter_seq(there, -2, -1, group, head_size=3), flat)
    # Queries, keys and values in one tensor.
    fused = torch.cat([own.flatten(2), 2 * own.flatten(2), 3 * own.flatten(2)], -1)
    expected = torch.cat([here.flatten(2), 2 * here.flatten(2), 3 * here.flatten(2)], -1)
    qkv = longspan.gather_seq_scatter_heads_qkv(fused, 1, tokens, head_size=3, group=group)
    assert torch.equal(qkv, expected)
    apart = longspan.gather_seq_scatter_heads_qkv(fused, 1, tokens, False, True, group, head_size=3).wait()
    assert torch.equal(apart, expected.unflatten(-1, (3, -1)))
    # No tokens.
    assert longspan.gather_seq_scatter_heads(own[:, :0], **keys).shape == (2, 0, here.shape[2], 3)

    weights = torch.randn(heads, dtype=torch.double)[heads_of(rank, size, heads)]

    def function(x):
        there = longspan.gather_seq_scatter_heads(x, unpadded_dim_size=tokens, **keys)
        work = longspan.gather_seq_scatter_heads(x * x, async_op=True, **keys)
        back = longspan.gather_heads_scatter_seq(there.sin() * weights[:, None], 2, 1, group)
        return (back * x).sum() + work.wait().pow(3).sum()

    return slope_error(function, [own])


def layer(x, weights, heads, kv_heads, norm, eps, project, output):
    """Causal attention between two projections. `project` returns q, k, v as [1, T, n, H]."""
    q, k, v = project(x)
    k, v = (y.repeat_interleave(q.shape[2] // max(y.shape[2], 1), 2) for y in (k, v))
    q, k, v = (y.transpose(1, 2) for y in (q, k, v))
    # Without heads torch 2.11's function ends the process by SIGFPE.
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True) if q.shape[1] > 0 else q + k + v
    return output(out.transpose(1, 2))


def projections(rank, size, heads, kv_heads, norm):
    """Largest relative error of the output and of all gradients of a layer whose exchanges run under its projections."""
    import torch.distributed as dist

    import longspan

    longspan.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    torch.manual_seed(0)
    tokens, dim, H, eps = 13, 10, 4, 1e-3
    row = torch.randn(1, tokens, dim, dtype=torch.double)
    shapes = dict(wq=(heads * H, dim), bq=(heads * H,), wk=(kv_heads * H, dim), bk=(kv_heads * H,), wv=(kv_heads * H, dim),
                  bv=(kv_heads * H,), wo=(dim, heads * H), bo=(dim,), nq=(H,), mq=(H,), nk=(H,), mk=(H,))
    weights = {name: torch.randn(shape, dtype=torch.double) for name, shape in shapes.items()}
    upstream = torch.randn(1, tokens, dim, dtype=torch.double)

    def run(x, w, upstream, project, output):
        leaves = [x.requires_grad_()] + [y.detach().clone().requires_grad_() for y in w.values()]
        w = dict(zip(w, leaves[1:]))
        y = layer(x, w, heads, kv_heads, norm, eps, lambda x: project(x, w), lambda o: output(o, w))
        loss = (y * upstream[:, : y.shape[1]]).sum()
        return y.detach(), torch.autograd.grad(loss, leaves, materialize_grads=True, allow_unused=True)

    def plain_project(x, w):
        q, k, v = (torch.nn.functional.linear(x, w["w" + n], w["b" + n]).unflatten(-1, (-1, H)) for n in "qkv")
        if norm == "rmsnorm":
            q, k = (torch.nn.functional.rms_norm(y, [H], w["n" + n], eps) for y, n in ((q, "q"), (k, "k")))
        if norm == "layernorm":
            q, k = (torch.nn.functional.layer_norm(y, [H], w["n" + n], w["m" + n], eps) for y, n in ((q, "q"), (k, "k")))
        return q, k, v

    def plain_output(o, w):
        return torch.nn.functional.linear(o.flatten(2), w["wo"], w["bo"])

    def project(x, w):
        names = dict(norm_q_weight="nq", norm_k_weight="nk") if norm else {}
        names |= dict(norm_q_bias="mq", norm_k_bias="mk") if norm == "layernorm" else {}
        return longspan.async_ulysses_qkv_projection(
            x, 1, 2, w["wq"], w["bq"], w["wk"], w["bk"], w["wv"], w["bv"], norm_type=norm,
            normalized_shape=H if norm else None, eps=eps, unpadded_dim_size=tokens, head_dim=H,
            **{argument: w[name] for argument, name in names.items()})

    def output(o, w):
        return longspan.async_ulysses_output_projection(o, 1, 2, w["wo"], w["bo"], unpadded_dim_size=tokens)

    expected, of_row = run(row.clone(), weights, upstream, plain_project, plain_output)
    found, own = run(tokens_of(rank, size, row), weights, tokens_of(rank, size, upstream), project, output)
    real = min(found.shape[1], max(0, tokens - rank * found.shape[1]))
    of_row, own = list(of_row), list(own)
    pairs = [(found[:, :real], tokens_of(rank, size, expected)[:, :real]), (own[0], tokens_of(rank, size, of_row[0]))]
    for whole, part in zip(of_row[1:], own[1:]):
        dist.all_reduce(part)
        pairs.append((part, whole))
    longspan.set_ulysses_sequence_parallel_group(None)
    return max(((a - b).abs().max() / (b.abs().max() + 1)).item() for a, b in pairs)


def flat_projection(rank, size):
    """The difference of an output projection whose heads and their elements are one dimension from one with four dimensions."""
    import longspan

    torch.manual_seed(0)
    x, weight = torch.randn(2, 3 * size, 2, 4, requires_grad=True), torch.randn(6, 8 * size, requires_grad=True)
    both = []
    for y in (x, x.flatten(2)):
        out = longspan.async_ulysses_output_projection(y, 1, 2, weight, None, None, torch.distributed.group.WORLD)
        both.append([out, *torch.autograd.grad(out.sin().sum(), [x, weight])])
    return max((a - b).abs().max().item() for a, b in zip(*both, strict=True))


def order_of_backward(rank, size):
    """Names of the backward's nodes of an output projection, in the order in which autograd runs them."""
    import longspan

    x = torch.randn(1, 2 * size, 1, 4, requires_grad=True)
    weight = torch.randn(6, 4 * size, requires_grad=True)
    y = longspan.async_ulysses_output_projection(x, 1, 2, weight, None, group=torch.distributed.group.WORLD)
    nodes, found = [y.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in found:
            found.add(node)
            nodes += [next_node for next_node, _ in node.next_functions]
    found = sorted((node for node in found if "AccumulateGrad" not in node.name()), key=lambda node: -node._sequence_nr())
    return [node.name() for node in found]


def wrapped(rank, size, heads, kv_heads):
    """Error of DistributedAttention, with tokens in the first dimension or in the second, and of its slope."""
    import longspan

    def attention(q, k, v, scale):
        k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) if k.shape[2] else x for x in (k, v))
        q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).permute(2, 0, 1, 3)

    torch.manual_seed(0)
    row = [torch.randn(4 * size, 2, n, 3, dtype=torch.double) for n in (heads, kv_heads, kv_heads)]
    own = [tokens_of(rank, size, x, 0) for x in row]
    module = longspan.DistributedAttention(attention, torch.distributed.group.WORLD)
    error = (module(*own, 1, scale=0.5) - tokens_of(rank, size, attention(*row, scale=0.5), 0)).abs().max().item()
    assert error < 4 * size * 16 * UNITS, error
    second = longspan.DistributedAttention(
        lambda q, k, v, scale: attention(*(x.transpose(0, 1) for x in (q, k, v)), scale).transpose(0, 1),
        torch.distributed.group.WORLD, 2, 1, None)
    out = second(*(x.transpose(0, 1).contiguous() for x in own), 0, None, 0.5)  # arguments in DeepSpeed's places
    assert torch.equal(out.transpose(0, 1), module(*own, 1, scale=0.5))
    return slope_error(lambda *x: module(*x, scale=0.5).sin().sum(), own)


def losses(rank, size):
    """Results and gradients of reduced losses."""
    import torch.distributed as dist

    import longspan

    group = dist.group.WORLD
    found = {}
    for name, values, counts in [("mean", [2.0, 5.0, 11.0], [3, 0, 7]), ("not a number", [2.0, math.nan, 11.0], [3, 0, 7]),
                                 ("nothing", [math.nan, 1.0, 2.0], [0, 0, 0])]:
        loss = torch.tensor(values[rank], dtype=torch.double, requires_grad=True)
        count = torch.tensor(counts[rank])
        mean = longspan.reduce_sequence_parallel_loss(loss, count, group)
        (2 * mean).backward()
        assert count.item() == counts[rank] and (loss.item() == values[rank] or math.isnan(values[rank]))
        found[name] = mean.item(), loss.grad.item()
    x = torch.randn(5, dtype=torch.double)
    count = rank + 1
    found["slope"] = slope_error(
        lambda x: longspan.reduce_sequence_parallel_loss(x.sin().mean(), count, group), [x], 1 / size)
    return found


def misuse(rank, size):
    """The messages of mistakes, which all ranks make."""
    import torch.distributed as dist

    import longspan

    group = dist.group.WORLD
    x, weight, pair = torch.zeros(1, 4, 6, 8), torch.zeros(24, 8), torch.zeros(2)
    texts = []

    def refused(function, *arguments, **keys):
        with pytest.raises(longspan.UsageError) as caught:
            function(*arguments, **keys)
        texts.append(str(caught.value))

    refused(longspan.gather_seq_scatter_heads, x, 1, 1, group=group)
    refused(longspan.gather_seq_scatter_heads, x, 1, 4, group=group)
    refused(longspan.gather_seq_scatter_heads, x, 1, 2, 4 * size + 1, group=group)
    refused(longspan.gather_seq_scatter_heads, x, 1, 2, head_size=4, group=group)
    refused(longspan.gather_seq_scatter_heads, x, 1, 2, num_query_heads=9, group=group)
    refused(longspan.gather_seq_scatter_heads, x[:, :, :0], 1, 2, group=group)
    refused(longspan.gather_heads_scatter_seq, x[:, :, : 1 + (rank == 0)], 2, 1, group=group)
    refused(longspan.gather_heads_scatter_seq, x[:, :, :0], 2, 1, group=group, num_heads=9)
    refused(longspan.gather_seq_scatter_heads_qkv, x, 1, group=group)
    refused(longspan.reduce_sequence_parallel_loss, pair, 1, group=group)
    refused(longspan.set_ulysses_sequence_parallel_group, dist.GroupMember.NON_GROUP_MEMBER)
    projection = longspan.async_ulysses_qkv_projection
    refused(projection, x[0], 1, 2, weight, None, weight, None, weight, None, head_dim=5, group=group)
    refused(projection, x[0], 1, 2, weight, None, weight, None, weight, None, "batchnorm", head_dim=4, group=group)
    plain = x[0], 1, 2, weight, None, weight, None, weight, None
    refused(projection, *plain, head_dim=4, norm_k_weight=pair, group=group)
    refused(projection, *plain, head_dim=4, normalized_shape=4, group=group)
    refused(projection, *plain, "rmsnorm", head_dim=4, norm_q_bias=pair, group=group)
    refused(longspan.gather_seq_scatter_heads, x, 1, 2, 0, group)  # its place in VeOmni's functions without async_op
    refused(longspan.async_ulysses_output_projection, x, 1, 2, weight, None, 5, group=group)
    refused(longspan.async_ulysses_output_projection, x, 1, 2, torch.zeros(8, 12), None, group=group)
    module = longspan.DistributedAttention(lambda q, k, v: q, group, 2, 1)
    refused(module, x, x, x, 2)
    refused(module, x, x, x, 0, (x, x))
    return texts


MISUSE = ["are both 1", "a dimension is 4", "unpadded_dim_size is", "head_size is 4", "6 heads for 9 query heads", "0 heads for",
          "pass the heads that seq_to_heads returned", "and of 9 heads", "must be a multiple of 3", "pass one number",
          "pass a process group", "head_dim is 5", "norm_type is 'batchnorm'", "norm_k_weight is given, and norm_type None",
          "normalized_shape is given", "norm_q_bias is given, and norm_type 'rmsnorm'", "async_op is", "unpadded_dim_size is 5",
          "heads of 8 do not divide", "the three must differ", "rotary_pos_emb is not supported"]


def compiled(rank, size, heads):
    """Largest difference of results and gradients of a compiled function from those of the function."""
    import longspan

    group = torch.distributed.group.WORLD
    torch.manual_seed(rank)
    x = torch.randn(1, 5, heads, 3, dtype=torch.double)
    weight = torch.randn(3 * heads, 3 * heads, dtype=torch.double)

    def function(x, weight):
        q, k, v = longspan.async_ulysses_qkv_projection(
            x.flatten(2), 1, 2, weight, None, weight * 2, None, weight * 3, None, head_dim=3, group=group)
        y = longspan.async_ulysses_output_projection(q.sin() * k + v, 1, 2, weight, None, group=group)
        there = longspan.gather_seq_scatter_heads(y.unflatten(-1, (-1, 3)), 1, 2, 7, group=group)
        return longspan.gather_heads_scatter_seq(there * there, 2, 1, group, num_heads=heads).sum()

    def attention(x, weight):
        y = longspan.attention(x[0], x[0] * 2, x[0].cos(), cu_seqlens=[0, 3, 5 * size], group=group)
        loss = longspan.linear_cross_entropy(y.flatten(1), weight, torch.arange(5))
        return longspan.reduce_sequence_parallel_loss(loss / 5, rank + 1, group)

    differences = []
    for each in (function, attention):
        both = []
        for f in (each, torch.compile(each, fullgraph=True, backend="aot_eager")):
            leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            y = f(*leaves)
            both.append([y, *torch.autograd.grad(y, leaves)])
        differences += [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*both)]
    return max(differences)


CASES = {
    2: [(exchanges, 4), (exchanges, 3), (exchanges, 7),  # DeepSpeed's uneven heads: 3, 7
        (projections, 4, 2, None), (projections, 3, 3, "rmsnorm"), (projections, 7, 1, "layernorm"),
        (projections, 6, 3, "rmsnorm"),  # a kv head serves both ranks, beside another one
        (wrapped, 7, 7), (wrapped, 6, 3), (misuse,), (flat_projection,), (compiled, 3)],
    3: [(exchanges, 2), (projections, 2, 1, None),  # a rank without heads
        (wrapped, 3, 1), (losses,)],
}


def all_cases(rank, size):
    return {(function.__name__, *arguments): function(rank, size, *arguments) for function, *arguments in CASES[size]}


def check_losses(rank, found):
    mean = (2 * 3 + 11 * 7) / 10
    assert found["mean"] == pytest.approx((mean, 2 * [3, 0, 7][rank] / 10), rel=4 * UNITS)
    assert found["not a number"] == found["mean"]
    assert found["nothing"] == (0, 0)
    assert found["slope"] < 1e-7


@pytest.mark.parametrize("size", CASES)
def test_on_ranks(size):
    for rank, results in enumerate(run_forks(size, all_cases, size)):
        for (name, *_), found in results.items():
            if name in ("exchanges", "wrapped"):  # differences with a step of 1e-6 are exact to about 1e-10 of the slope
                assert found < 1e-7, results
            elif name == "projections":  # sums of at most 13 * 28 numbers near 1 in three layers
                assert found < 13 * 28 * 3 * 16 * UNITS, results
            elif name == "flat_projection":
                assert found == 0, results
            elif name == "losses":
                check_losses(rank, found)
            elif name == "compiled":
                assert found < 1e-13, results
            else:
                assert all(sentence in text for sentence, text in zip(MISUSE, found, strict=True)), found


def test_the_exchange_of_a_backward_runs_under_the_gradient_of_the_weight():
    for names in run_forks(2, order_of_backward, 2):
        places = [next(i for i, name in enumerate(names) if part in name)
                  for part in ("FinishToTokens", "Parameters", "StartToTokens")]
        assert places == sorted(places), names


# The parameters of VeOmni's functions, with defaults: a model that calls these functions needs only another import.
INTERFACE = {
    "gather_seq_scatter_heads": "x, seq_dim, head_dim, unpadded_dim_size=0, async_op=False, group=None",
    "gather_heads_scatter_seq": "x, head_dim, seq_dim, group=None",
    "gather_seq_scatter_heads_qkv": "qkv_tensor, seq_dim, unpadded_dim_size=None, restore_shape=True, async_op=False, group=None",
    "reduce_sequence_parallel_loss": "loss, num_valid_tokens, group=None",
    "async_ulysses_qkv_projection": "hidden_states, seq_dimension, head_dimension, q_weight, q_bias, k_weight, k_bias, v_weight, "
                                    "v_bias, norm_type=None, norm_q_weight=None, norm_q_bias=None, norm_k_weight=None, "
                                    "norm_k_bias=None, normalized_shape=None, eps=1e-05, unpadded_dim_size=0, head_dim=0, "
                                    "group=None",
    "async_ulysses_output_projection": "hidden_states, seq_dimension, head_dimension, proj_weight, proj_bias, "
                                       "unpadded_dim_size=0, group=None",
}


@pytest.mark.parametrize("name", INTERFACE)
def test_interface(name):
    import longspan

    given = inspect.signature(getattr(longspan, name)).parameters.values()
    by_place = [one.replace(annotation=inspect.Parameter.empty) for one in given if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert ", ".join(map(str, by_place)) == INTERFACE[name]
    assert all(one.default is not one.empty for one in given if one.kind is one.KEYWORD_ONLY)
