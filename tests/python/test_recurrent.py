"""Gated delta networks whose ranks exchange heads or pass states: beside transformers, and in fp64 beside one rank."""

import pytest
import torch
from forks import run_forks
from hf_models import packed_batches, small_model, train, unpacked, uneven_batches
from test_parallelize import close

import longspan

# Value heads that the ranks do not divide; borders of documents within and between ranks.
ODD = dict(linear_num_key_heads=1, linear_num_value_heads=3)
RUNS = [("qwen3_next", "zigzag-ring", packed_batches(2, (17, 1, 2, 21)), {}),
        ("qwen3_5_text", "ring", uneven_batches(2), ODD),
        ("qwen3_5_moe_text", "allgather", packed_batches(2, (3, 30)), {}),
        ("qwen3_5_text", "auto", packed_batches(2, (2, 1, 1)), ODD)]


def both_ways(rank, size):
    from longspan._registry import state_of_model

    found = []
    for number, (family, mode, batches, options) in enumerate(RUNS):
        for passes in (True, False):
            model = small_model(family, **options)
            if number == 0:
                model.gradient_checkpointing_enable(dict(use_reentrant=False))
            model, loader = longspan.parallelize(model, batches, mode=mode, sequence_parallel_size=size)
            state_of_model(model).passes_states = passes
            found.append(train(model, loader))
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_both_ways(size):
    expected = [train(small_model(family, **options), [unpacked(batch) for batch in batches])
                for family, _, batches, options in RUNS]
    for found in run_forks(size, both_ways, size):
        for number, ours in enumerate(found):
            close(ours, expected[number // 2])


def biased_model():
    """A gated delta network whose convolution has a bias."""
    model = small_model("qwen3_5_text", **ODD)
    for layer in model.modules():
        if hasattr(layer, "conv1d"):
            layer.conv1d.bias = torch.nn.Parameter(torch.linspace(-1, 1, layer.conv1d.weight.shape[0]))
    return model


def biased(rank):
    model, loader = longspan.parallelize(biased_model(), uneven_batches(2), mode="ulysses", sequence_parallel_size=2)
    return train(model, loader)


def test_bias_of_the_convolution():
    expected = train(biased_model(), uneven_batches(2))
    for found in run_forks(2, biased):
        close(found, expected)


def plan_of(rank, size):
    """By numbers of value heads: whether the ranks pass states."""
    from longspan._registry import state_of_model

    found = {}
    for heads in (1, size):
        options = dict(linear_num_key_heads=1, linear_num_value_heads=heads, linear_key_head_dim=64, linear_value_head_dim=64)
        model, _ = longspan.parallelize(small_model("qwen3_5_text", **options), sequence_parallel_size=size,
                                        mode="zigzag-ring", num_tokens=65536)
        found[heads] = state_of_model(model).passes_states
    return found


def test_plan():
    """The core's plan decides (parallel_plan_test.cpp): states pass on where heads would leave ranks idle."""
    assert run_forks(2, plan_of, 2) == [{1: True, 2: False}] * 2
    model, _ = longspan.parallelize(small_model("qwen3_5_text"), sequence_parallel_size=1)
    from longspan._registry import state_of_model

    assert not state_of_model(model).passes_states


NET = [2, 4, 4, 3]  # key heads, value heads, elements of a key's head, of a value's head


def net_tensors(tokens):
    """x, a, b of a row, and the parameters, in fp64; the gradient of the output."""
    generator = torch.Generator().manual_seed(9)

    def random(*sizes):
        return torch.randn(sizes, generator=generator, dtype=torch.double)

    return ([random(tokens, 28), random(tokens, 4), random(tokens, 4)], [random(28, 1, 4), random(4), random(4)],
            random(tokens, 4, 3))


def net(tensors, documents, sharing):
    return longspan._native.call("gated_delta_net", *tensors, NET, list(documents), sharing.name, sharing.mode,
                                 list(sharing.degrees), [6, 2, 8, 8], 60)


def solve(rank, cases):
    """Output and gradients: of this rank's tokens, at their places in the row, and this rank's part of those of parameters."""
    heads = longspan.Heads(6, 2, 8, 8)
    found = []
    for mode, documents, hooked in cases:
        sharing = longspan.share(heads, group=torch.distributed.group.WORLD, mode=mode)
        order = longspan.token_order(sharing, documents, heads)
        row, parameters, gradient = net_tensors(sum(documents))
        leaves = [order.take(x, 0.0).requires_grad_() for x in row] + [x.requires_grad_() for x in parameters]
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x) if hooked else torch.enable_grad()
        with hooks:
            out = net(leaves, order.documents, sharing)
        assert ("Replayed" in out.grad_fn.name()) == hooked
        own = torch.autograd.grad(out, leaves, order.take(gradient, 0.0))
        with torch.no_grad():  # autocast must not reach the states
            single = [x.float() for x in leaves]
            plain = net(single, order.documents, sharing)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(net(single, order.documents, sharing), plain)
        real = order.index >= 0

        def spread(x):
            return torch.zeros(sum(documents), *x.shape[1:], dtype=x.dtype).index_copy(0, order.index[real], x[real])

        found.append([*map(spread, (out.detach(), *own[:3])), *own[3:]])
    return found


CASES = [("zigzag-ring", [5, 1, 40], True), ("ring", [46], False), ("zigzag-ring", [2, 1, 1, 9], False), ("ulysses", [7, 20], True)]


@pytest.mark.parametrize("size", [2, 3])
def test_operator(size):
    parts = run_forks(size, solve, CASES)
    local = longspan.share(longspan.Heads(6, 2, 8, 8))
    for number, (_, documents, _) in enumerate(CASES):
        row, parameters, gradient = net_tensors(sum(documents))
        leaves = [x.requires_grad_() for x in (*row, *parameters)]
        out = net(leaves, documents, local)
        expected = [out.detach(), *torch.autograd.grad(out, leaves, gradient)]
        for tensors, exact in zip(zip(*(part[number] for part in parts)), expected, strict=True):
            torch.testing.assert_close(sum(tensors), exact, rtol=1e-10, atol=1e-10)


def test_gradients():
    row, parameters, _ = net_tensors(7)
    leaves = [x.requires_grad_() for x in (*row, *parameters)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):  # gradcheck walks the same graph several times
        assert torch.autograd.gradcheck(lambda *x: net(x, [2, 5], longspan.share(longspan.Heads(6, 2, 8, 8))), leaves)
    with pytest.raises(longspan.UsageError, match="for 8 tokens of this rank"):
        net(leaves, [8], longspan.share(longspan.Heads(6, 2, 8, 8)))
