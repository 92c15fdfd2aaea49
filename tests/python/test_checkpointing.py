"""Gradient checkpointing that computes attention once (longspan.save_attention), beside checkpointing that computes it twice."""

import functools

import pytest
import torch
from forks import run_forks
from hf_models import Products, small_model, uneven_batches
from torch.utils.checkpoint import checkpoint

import longspan
from longspan import _native

T, N, M, H = 24, 4, 2, 8
CASES = {
    "plain": {},
    "window": dict(window=7),
    "sinks": dict(sinks=True),
    "documents": dict(documents=[12, 8, 28]),
}


def inputs(rank, dtype=torch.float64):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(T, heads, H, generator=generator, dtype=dtype).requires_grad_() for heads in (N, M, M)]


def region(options, group, mode, outs=None, factors=None):
    """Two calls of attention. `factors`: of the queries in each pass. `outs` gets the output of each call."""
    options = dict(options)
    sinks = torch.linspace(-1, 1, N, dtype=torch.float64).requires_grad_() if options.pop("sinks", False) else None

    def run(q, k, v):
        factor = factors.pop(0) if factors else 1.0
        for _ in range(2):
            out = longspan.attention(q * factor, k, v, group=group, mode=mode, sinks=sinks, **options)
            if outs is not None:
                outs.append(out.detach().clone())
            q = out.sin()
        return q

    return run, [] if sinks is None else [sinks]


def gradients(rank, run, more, context, passes=1):
    given = inputs(rank)
    y = checkpoint(run, *given, use_reentrant=False, **context) if context is not None else run(*given)
    return y.detach(), [torch.autograd.grad(y.square().sum(), given + more, retain_graph=i + 1 < passes) for i in range(passes)]


def compare(rank, mode, size):
    group = torch.distributed.group.WORLD if size > 1 else None
    for options in CASES.values():
        if size == 1:
            options = options | ({"documents": [13, 11]} if "documents" in options else {})
        results = [gradients(rank, *region(options, group, mode), context, passes)
                   for context, passes in ((None, 1), ({}, 1), (dict(context_fn=longspan.save_attention), 2))]
        (out, (plain,)), (out_again, (twice,)), (out_saved, saved) = results
        assert torch.equal(out, out_again) and torch.equal(out, out_saved)
        for a, b, c, d in zip(plain, twice, *saved, strict=True):
            assert torch.equal(a, b) and torch.equal(a, c) and torch.equal(a, d)


def replay(rank, mode):
    """Whether the outputs of the recomputation, which has other queries, are those of the forward."""
    found = []
    for context in ({}, dict(context_fn=longspan.save_attention)):
        outs = []
        gradients(rank, *region({}, torch.distributed.group.WORLD, mode, outs, [1.0, 3.0]), context)
        found.append(len(outs) == 4 and torch.equal(outs[0], outs[2]) and torch.equal(outs[1], outs[3]))
    return found


@pytest.mark.parametrize("mode, size", [("local", 1), ("ulysses", 2), ("zigzag-ring", 2), ("llama3", 2), ("ring", 2)])
def test_gradients_are_equal_to_the_bit(mode, size):
    run_forks(size, compare, mode, size)


def test_attention_is_computed_once():
    for mode in ("ulysses", "zigzag-ring"):
        assert run_forks(2, replay, mode) == [[False, True]] * 2


def test_an_output_that_was_changed_is_refused():
    def run(q, k, v):
        wide = [x.float().repeat(1, 1, 8) for x in (q, k, v)]  # 64 elements: the kernel whose output is not a view
        return longspan.attention(*wide, mode="local").mul_(2).sin()

    with pytest.raises(longspan.UsageError, match="changed in place"):
        gradients(0, run, [], dict(context_fn=longspan.save_attention))


def named_calls(rank, family, checkpointing, options):
    model = small_model(family)
    model.gradient_checkpointing_enable(checkpointing)
    model, loader = longspan.parallelize(model, uneven_batches(1, rows=1), sequence_parallel_size=2, **options)
    names, call = [], _native.call
    _native.call = lambda name, *arguments: (names.append(name), call(name, *arguments))[1]
    try:
        model(**next(iter(loader))).loss.backward()
    finally:
        _native.call = call
    return names.count("attend"), names.count("attend_saved"), names.count("replay_attention")


@pytest.mark.parametrize("checkpointing, options, expected", [
    (dict(use_reentrant=False), {}, (0, 4, 2)),
    (dict(use_reentrant=False), dict(save_attention=False), (4, 0, 0)),
    (dict(use_reentrant=True), {}, (4, 0, 0)),
    (dict(use_reentrant=False, context_fn=torch.utils.checkpoint.noop_context_fn), {}, (4, 0, 0)),
])
def test_layers_of_transformers(checkpointing, options, expected):
    for found in run_forks(2, named_calls, "llama", checkpointing, options):
        assert found == expected


SAVED_PRODUCTS = dict(context_fn=functools.partial(longspan.save_attention, products=True))


@pytest.mark.parametrize("dtype, passes", [(None, 1), (None, 2), (torch.bfloat16, 1)])
def test_products_are_computed_once(dtype, passes):
    """A region with three products, the last one of which no gradient needs."""
    generator = torch.Generator().manual_seed(0)
    x, *weights, bias = [torch.randn(sizes, generator=generator).requires_grad_()
                         for sizes in ((1, 5, 8), (16, 8), (16, 16), (8, 16), (16,))]

    def run(x):
        y = torch.nn.functional.linear(x, weights[0], bias).sin()
        y = torch.nn.functional.linear(y, weights[1]).sin()
        return x + torch.nn.functional.linear(y, weights[2])

    found, counts = [], []
    for context in (None, {}, SAVED_PRODUCTS):
        with Products() as products, torch.autocast("cpu", dtype, enabled=dtype is not None):
            y = run(x) if context is None else checkpoint(run, x, use_reentrant=False, **context)
            y = y.float().square().sum()
            for i in range(passes):
                found.append(torch.autograd.grad(y, [x, *weights, bias], retain_graph=i + 1 < passes))
        counts.append(products.count)
    for gradients_of_run in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], gradients_of_run, strict=True))
    assert counts == [3 + 6 * passes, 3 + 8 * passes, 3 + 6 * passes]


def test_a_product_that_was_changed_is_refused():
    weight = torch.randn(8, 8, requires_grad=True)

    def run(x):
        return torch.nn.functional.linear(torch.nn.functional.linear(x, weight).mul_(2).sin(), weight)

    with pytest.raises(longspan.UsageError, match="a product was changed in place"):
        checkpoint(run, torch.randn(3, 8), use_reentrant=False, **SAVED_PRODUCTS).sum().backward()


def test_forwards_without_values():
    """Shapes of fake and meta tensors in checkpointed regions."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def run(q, k, v):
        return longspan.attention(q, k, v, mode="local").sin()

    for mode in (FakeTensorMode(), torch.device("meta")):
        with mode:
            given = [torch.empty(T, heads, H, requires_grad=True) for heads in (N, M, M)]
            y = checkpoint(run, *given, use_reentrant=False, context_fn=longspan.save_attention)
            assert y.shape == (T, N, H)
