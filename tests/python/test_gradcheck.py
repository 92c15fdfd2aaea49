"""Gradients of every function of the package in fp64, beside differences: on one process, and exchanges on two ranks."""

import functools

import pytest
import torch
from forks import run_forks
from hf_models import small_model

import longspan

# Names without a gradient of their own: types, errors, settings, and functions that start or change something. parallelize(),
# whole_rows() and save_attention() run models, which other tests compare with one process.
OTHERS = frozenset([
    "Answer", "BatchCounts", "Callback", "CommunicationError", "Config", "Document", "Documents", "Evaluation",
    "Example", "Heads", "LongspanError", "LossFunction", "LossInput", "MemoryLine", "OffloadActivations", "Overrides",
    "ParallelLoader", "ParallelizeOptions", "Plan", "Progress", "ProgressBar", "Row", "RowLosses", "Sample", "Session",
    "Sharing", "StopTraining", "TokenOrder", "TrainResult", "UsageError", "Work", "average_gradients", "evaluate",
    "get_ulysses_sequence_parallel_group", "parallelize", "parallelize_loader", "parallelize_trainer", "plan",
    "save_attention", "set_ulysses_sequence_parallel_group", "share", "token_order", "train", "whole_rows",
    "gather_tokens",  # test_parallelize.py: on four ranks, beside one process
])


def leaves(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]


def softmax_attention(q, k, v):
    """[T, N, H], the layout of DeepSpeed's module."""
    scores = torch.einsum("qnh,knh->nqk", q, k)
    future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return torch.einsum("nqk,knh->qnh", torch.softmax(scores.masked_fill(future, -torch.inf), -1), v)


def projections(x, wq, bq, wk, wv, nq, nk):
    return longspan.async_ulysses_qkv_projection(x, 1, 2, wq, bq, wk, None, wv, None, norm_type="rmsnorm", norm_q_weight=nq,
                                                 norm_k_weight=nk, head_dim=2)


def head(softcap):
    return lambda x, w: longspan.linear_cross_entropy(x, w, torch.tensor([1, 0, -100, 2]), softcap=softcap, reduction="none")


def head_module(x, w):
    module = longspan.LinearCrossEntropy(3, 5, dtype=torch.double)
    return torch.func.functional_call(module, {"weight": w}, (x, torch.tensor([4, -100])))


def mlp(x, w):
    return torch.tanh(x @ w) @ w.t()


class Mlp(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w

    def forward(self, x):
        return mlp(x, self.w)


def offloaded(x, w):
    with longspan.offload_activations(min_bytes=1):
        return mlp(x, w)


@functools.cache
def parallelized():
    return longspan.parallelize(small_model("llama", num_hidden_layers=1), sequence_parallel_size=1)[0]


def mean_of_losses(x):
    return longspan.mean_loss(parallelized(), x.square().sum(), torch.tensor(3))


def attended(q, k, v):
    kind = longspan.Heads(2, 1, 2, 3)
    sharing = longspan.share(kind, num_tokens=5, dtype=torch.double)
    return longspan.attend(q, k, v, sharing=sharing, documents=longspan.token_order(sharing, [3, 2], kind).documents)


Q, K, V = (5, 2, 2), (5, 1, 2), (5, 1, 3)
CASES = {
    "attention": (lambda q, k, v, s: longspan.attention(q, k, v, cu_seqlens=[0, 3, 5], window=2, softcap=2.0, sinks=s),
                  Q, K, V, (2,)),
    "attend": (attended, Q, K, V),
    "gather_seq_scatter_heads": (lambda x: longspan.gather_seq_scatter_heads(x, 1, 2, 3, head_size=2), (2, 4, 4)),
    "gather_heads_scatter_seq": (lambda x: longspan.gather_heads_scatter_seq(x, 2, 1), (2, 4, 3)),
    "gather_seq_scatter_heads_qkv": (lambda x: longspan.gather_seq_scatter_heads_qkv(x, 1, 3, head_size=2), (1, 4, 12)),
    "async_ulysses_qkv_projection": (projections, (1, 3, 3), (4, 3), (4,), (2, 3), (2, 3), (2,), (2,)),
    "async_ulysses_output_projection": (lambda x, w, b: longspan.async_ulysses_output_projection(x, 1, 2, w, b),
                                        (1, 3, 2, 2), (3, 4), (3,)),
    "DistributedAttention": (longspan.DistributedAttention(softmax_attention, None, 1, 0), (4, 2, 2), (4, 2, 2), (4, 2, 2)),
    "reduce_sequence_parallel_loss": (lambda x: longspan.reduce_sequence_parallel_loss(x * x, 3), ()),
    "linear_cross_entropy": (head(2.0), (4, 3), (5, 3)),
    "LinearCrossEntropy": (head_module, (2, 3), (5, 3)),
    "tiled_mlp": (lambda x, w: longspan.tiled_mlp(Mlp(w), x, 2), (3, 2), (2, 4)),
    "TiledMLP": (lambda x, w: longspan.TiledMLP(Mlp(w), 2)(x), (3, 2), (2, 4)),
    "offload_activations": (offloaded, (3, 2), (2, 4)),
    "mean_loss": (mean_of_losses, (4,)),
}


def test_every_function_has_a_case():
    assert set(longspan.__all__) == set(CASES) | OTHERS and not set(CASES) & OTHERS


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name):
    function, *shapes = CASES[name]
    assert torch.autograd.gradcheck(function, leaves(*shapes))


# Functions without a second derivative, and the name in their error.
ONCE = {"attention": "attention", "attend": "attention", "linear_cross_entropy": "linear_cross_entropy",
        "LinearCrossEntropy": "linear_cross_entropy"} | dict.fromkeys(
            ["async_ulysses_qkv_projection", "async_ulysses_output_projection", "DistributedAttention"], "an exchange in flight")


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name):
    function, *shapes = CASES[name]
    inputs = leaves(*shapes)
    if name not in ONCE:
        assert torch.autograd.gradgradcheck(function, inputs)
        return
    results = function(*inputs)
    for result in results if isinstance(results, tuple) else [results]:
        with pytest.raises(ValueError, match=f"^{ONCE[name]} has no second derivative: .*create_graph"):
            torch.autograd.grad(result.sum(), inputs, create_graph=True, allow_unused=True)


class OwnPart(torch.autograd.Function):
    """This rank's part of a dimension of x, which all ranks have. Its gradient is gathered."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.chunk(2, dim)[torch.distributed.get_rank()].clone()

    @staticmethod
    def backward(ctx, gradient):
        return Whole.apply(gradient, ctx.dim), None


class Whole(torch.autograd.Function):
    """The ranks' parts of a dimension, on all ranks. A rank's gradient is its own part."""

    @staticmethod
    def forward(ctx, own, dim):
        ctx.dim = dim
        return gathered(own, dim)

    @staticmethod
    def backward(ctx, gradient):
        return OwnPart.apply(gradient, ctx.dim), None


def gathered(own, dim):
    parts = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(2)]
    torch.distributed.all_gather(parts, own.contiguous())
    return torch.cat(parts, dim)


def exchanges(rank):
    """Both ranks have the same whole tensors, and take the same steps: differences move an element on both."""
    group = torch.distributed.group.WORLD
    x, fused = leaves((1, 4, 2, 2), (1, 2, 12))
    there = lambda x: Whole.apply(longspan.gather_seq_scatter_heads(OwnPart.apply(x, 1), 1, 2, group=group), 2)  # noqa: E731
    back = lambda x: Whole.apply(longspan.gather_heads_scatter_seq(OwnPart.apply(x, 2), 2, 1, group), 1)  # noqa: E731
    three = lambda x: Whole.apply(  # noqa: E731
        longspan.gather_seq_scatter_heads_qkv(OwnPart.apply(x, 1), 1, restore_shape=False, group=group, head_size=2), 3)
    assert torch.equal(there(x), x) and torch.equal(back(x), x) and torch.equal(three(fused), fused.unflatten(-1, (3, 4)))
    # A few exchanges for each function: the product of the Jacobian with two random vectors, the same on both ranks.
    return [check(function, [given], fast_mode=True) for function, given in [(there, x), (back, x), (three, fused)]
            for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck)]


def test_gradcheck_of_exchanges_on_two_ranks():
    assert run_forks(2, exchanges) == [[True] * 6] * 2
