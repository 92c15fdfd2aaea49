"""Attention on the borders of documents of ring-flash-attention's tests, beside a plain softmax in fp64."""

import torch

# cu_seqlens of its tests, which run on 8 ranks with 5 heads. "ring" (also llama3's and the striped ring's): the ranks divide
# the lengths, twice as many do not. "zigzag": multiples of 16. "whole": one document. "ring / 8" (also of its kernels' test)
# and "zigzag / 8" have their borders at the same shares of the row. "prepared": parts of ranks with two documents.
BORDERS = {"ring": [0, 120, 1248, 4232], "zigzag": [0, 128, 1248, 4240], "whole": [0, 3816],
           "ring / 8": [0, 15, 156, 529], "zigzag / 8": [0, 16, 156, 530], "prepared": [0, 7, 14, 16]}
HEADS = 5
MODES = ["ring", "zigzag-ring", "striped-ring", "allgather", "llama3", "balanced-ulysses"]


def tolerance(borders):
    """Sums over at most as many keys as the row has tokens, of numbers of order 1: 16 units in the last place of each."""
    return borders[-1] * 16 * 10 * 2.0**-53


def plain(q, k, v, borders):
    """[T, N, H], one document and head after the other."""
    parts = []
    for begin, end in zip(borders, borders[1:]):
        future = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
        heads = []
        for n in range(q.shape[1]):
            scores = q[begin:end, n] @ k[begin:end, n].t() * q.shape[2] ** -0.5
            heads.append(torch.softmax(scores.masked_fill(future, -torch.inf), -1) @ v[begin:end, n])
        parts.append(torch.stack(heads, 1))
    return torch.cat(parts)


def attention_errors(rank, cases, head_dim, modes=MODES):
    """By case and mode: the largest errors of the output and of dq, dk, dv on this rank."""
    import torch.distributed as dist

    import longspan

    found = {}
    for name, borders in cases.items():
        torch.manual_seed(0)
        inputs = [torch.randn(borders[-1], HEADS, head_dim, dtype=torch.double, requires_grad=True) for _ in range(3)]
        upstream = torch.randn(borders[-1], HEADS, head_dim, dtype=torch.double)
        expected = [torch.empty_like(upstream) for _ in range(4)]
        if rank == 0:
            whole = plain(*inputs, borders)
            expected = [whole.detach(), *torch.autograd.grad(whole, inputs, upstream)]
        for x in expected:
            dist.broadcast(x, 0)
        kind = longspan.Heads(HEADS, HEADS, head_dim, head_dim)
        for mode in modes:
            sharing = longspan.share(kind, group=dist.group.WORLD, mode=mode, num_tokens=borders[-1], dtype=torch.double)
            order = longspan.token_order(sharing, [b - a for a, b in zip(borders, borders[1:])], kind)
            own = [order.take(x.detach(), 0).requires_grad_() for x in inputs]
            ends = torch.tensor([0, *order.documents]).cumsum(0)
            out = longspan.attention(*own, cu_seqlens=ends, group=dist.group.WORLD, mode=mode)
            out.backward(order.take(upstream, 0))
            errors = [x - order.take(y, 0) for x, y in zip([out, *(x.grad for x in own)], expected)]
            found[name, mode] = [max(error[order.index >= 0].abs().view(-1).tolist(), default=0.0) for error in errors]
    return found
