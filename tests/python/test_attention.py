"""longspan.attention under every method beside a plain softmax in fp64."""

import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from forks import run_forks
from machines import machines
from ranks import run_ranks

import longspan
from longspan import _native, _state

DOCUMENTS = [37, 20, 6]
# Lengths and, for a tree, its branches: (own tokens, branches).
TREES = [21, (16, [(9, []), (5, [(4, []), (7, [])]), (1, [])])]
MODES = ["ulysses", "dummy-head-ulysses", "xtuner-ulysses", "async-ulysses", "balanced-ulysses", "ring", "striped-ring",
         "zigzag-ring", "usp", "allgather", "llama3", "loongtrain", "auto"]


def tokens_of(documents):
    """The position of each token in its document, and the tokens that it sees."""
    positions, seen = [], []

    def add(part, before):
        length, branches = part if isinstance(part, tuple) else (part, [])
        line = list(before)
        for _ in range(length):
            line.append(len(seen))
            positions.append(len(line) - 1)
            seen.append(set(line))
        for branch in branches:
            add(branch, line)

    for document in documents:
        add(document, [])
    return torch.tensor(positions), seen


def plain_attention(q, k, v, documents, scale, window=None, softcap=None, sinks=None):
    """[T, N, V] of q [T, N, H], k [T, M, H], v [T, M, V], by the definition."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    scores = torch.einsum("tnh,snh->nts", q, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    position, ancestors = tokens_of(documents)
    seen = torch.tensor([[key in line for key in range(len(q))] for line in ancestors])
    if window is not None:
        seen &= position[:, None] - position < window
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(q), 1)], -1)
    weights = torch.softmax(scores, -1)
    return torch.einsum("nts,snh->tnh", weights[..., : len(q)], v)


def errors_of(rank, mode, heads, keys):
    """Largest errors of the output and of the gradients on this rank; the message of a UsageError."""
    torch.manual_seed(0)
    N, M, H, V = heads
    documents = keys.pop("documents", DOCUMENTS)
    tokens = len(tokens_of(documents)[0])
    q, k, v = (torch.randn(tokens, n, h, dtype=torch.double, requires_grad=True) for n, h in [(N, H), (M, H), (M, V)])
    sinks = torch.randn(N, dtype=torch.double, requires_grad=True) if keys.pop("sinks", False) else None
    weights = torch.randn(tokens, N, V, dtype=torch.double)
    inputs = [q, k, v] + [sinks] * (sinks is not None)
    expected = plain_attention(q, k, v, documents, H**-0.5, sinks=sinks, **keys)
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)

    kind = longspan.Heads(N, M, H, V, keys.get("window") or 0)
    try:
        sharing = longspan.share(kind, group=dist.group.WORLD, mode=mode, num_tokens=tokens, dtype=torch.double)
    except longspan.UsageError as error:
        return str(error)

    def document(part):
        return longspan.Document(part[0], [document(branch) for branch in part[1]]) if isinstance(part, tuple) else part

    order = longspan.token_order(sharing, [document(part) for part in documents], kind)
    is_real = order.index >= 0
    own = [order.take(x.detach(), 0).requires_grad_() for x in (q, k, v)]
    own_sinks = None if sinks is None else sinks.detach().requires_grad_()
    out = longspan.attend(*own, sharing=sharing, documents=order.documents, sinks=own_sinks, **keys)
    (out * order.take(weights, 0)).sum().backward()
    pairs = [(out, order.take(expected, 0))] + [(x.grad, order.take(y, 0)) for x, y in zip(own, gradients)]
    errors = [(a - b)[is_real].abs().max().item() for a, b in pairs]
    if sinks is not None:
        dist.all_reduce(own_sinks.grad)
        errors.append((own_sinks.grad - gradients[3]).abs().max().item())
    return max(errors)


def many(rank, heads, keys):
    return {mode: errors_of(rank, mode, heads, dict(keys)) for mode in MODES}


@pytest.mark.parametrize("size, heads, keys, refused", [
    (1, (4, 2, 16, 16), {}, set()),
    (2, (4, 2, 16, 16), dict(sinks=True), set()),
    (2, (3, 1, 16, 8), dict(window=9, softcap=5.0), {"ulysses", "async-ulysses"}),
    (3, (4, 2, 16, 16), dict(window=25), {"ulysses", "async-ulysses", "xtuner-ulysses"}),
    (1, (4, 2, 16, 16), dict(documents=TREES, window=9), set()),
    (2, (4, 2, 16, 16), dict(documents=TREES, window=9), set()),
    (3, (3, 1, 16, 8), dict(documents=TREES, sinks=True), set()),
])
def test_every_method(size, heads, keys, refused):
    for found in run_forks(size, many, heads, keys):
        # Sums over at most 63 keys of numbers of order 1: rounding is below 63 * 16 units in the last place of 10.
        assert {mode for mode, error in found.items() if not isinstance(error, float)} == refused, found
        assert max(error for error in found.values() if isinstance(error, float)) < 63 * 16 * 10 * 2.0**-53, found


def misuse(rank):
    texts = []

    def refused(**changes):
        shape = dict(q=(8, 4, 16), k=(8, 2, 16), v=(8, 2, 16)) | changes.pop("shapes", {})
        inputs = {name: torch.zeros(size) for name, size in shape.items()} | changes.pop("tensors", {})
        try:
            longspan.attention(**inputs, group=dist.group.WORLD, **changes)
        except longspan.UsageError as error:
            texts.append(str(error))
        else:
            texts.append("")

    refused(shapes=dict(k=(8, 3, 16)))
    refused(shapes=dict(v=(7, 2, 16)))
    refused(shapes=dict(q=(8, 64)))
    refused(tensors=dict(k=torch.zeros(8, 2, 16, dtype=torch.double)))
    refused(cu_seqlens=[0, 5, 5, 16])
    refused(cu_seqlens=[0, 40])
    refused(mode="rings")
    refused(mode="ulysses", shapes=dict(q=(8, 3, 16), k=(8, 3, 16), v=(8, 3, 16)))
    refused(sinks=torch.zeros(3))
    return texts


def test_misuse():
    first, second = run_forks(2, misuse)
    assert first == second
    for text, sentence in zip(first, ["whose number divides the heads of q", "the same tokens", "must be [tokens, heads, elements]",
                                      "the same dtype", "must begin with 0 and increase", "pass the lengths", "is not a mode",
                                      "cannot split 3 attention heads", "one number for each of 4 heads"], strict=True):
        assert sentence in text, text


def test_other_threads_run():
    """Operators do not hold the interpreter's lock."""
    q = torch.randn(4096, 4, 64)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.wait(0.001):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    within = 0
    for _ in range(5):  # a busy machine may leave the thread out for a while
        start = time.perf_counter()
        longspan.attention(q, q, q, mode="local")
        within += sum(start < at < time.perf_counter() for at in ticks)
        if within > 2:
            break
    stop.set()
    thread.join()
    assert within > 2


def left_alone(rank, folder):
    """Writes the error of the rank whose neighbour ends."""
    q = torch.randn(8, 2, 64)
    longspan.attention(q, q, q, group=dist.group.WORLD, mode="zigzag-ring")
    if rank == 0:
        try:
            longspan.attention(q, q, q, group=dist.group.WORLD, mode="zigzag-ring", timeout=60)
        except longspan.CommunicationError as error:
            (folder / "error").write_text(str(error))
    os._exit(0)


def test_a_rank_ends(tmp_path):
    with pytest.raises(FileNotFoundError):  # no rank has a result
        run_forks(2, left_alone, tmp_path, timeout=100)
    assert (tmp_path / "error").read_text()


def choose(rank):
    sharing = longspan.share(longspan.Heads(8, 4, 64, 64), group=dist.group.WORLD, num_tokens=4096, dtype=torch.float)
    return sharing.mode, sharing.reason


def network_of(group):
    """Ranks of a machine, bytes/s and seconds of a message between machines."""
    return _native.call("network", group.group_name, False, 60)


def choose_with_network(rank):
    return choose(rank), network_of(dist.group.WORLD)


def choose_in_groups(rank):
    """The network of one of two groups, then that of all groups, and the method, as parallelize() chooses it."""
    group = _state.sequence_group(2)[0]
    own = network_of(group)
    sharing = _state.share_alike(longspan.Heads(8, 4, 64, 64), group, "auto", torch.device("cpu"), 60, num_tokens=4096,
                                 dtype=torch.float)
    return own, network_of(group), sharing.mode


def is_slow(network):
    """The slowest card sends at most 2.5 MB/s (tests/machines.py). Rates are rounded to powers of two."""
    near, rate, delay = network
    return near == 1 and 2**19 <= rate <= 2**21 and delay > 0


def test_groups_agree_on_the_slowest_network():
    with machines(2) as (one, other):
        found = run_ranks(4, choose_in_groups, machines=[one, one, one, other])
    assert [own[0] for own, *_ in found] == [0, 0, 1, 1], found  # a group within a machine, and one across machines
    assert all(agreed == found[0][1] and mode == found[0][2] for _, agreed, mode in found), found
    assert is_slow(found[0][1]) and found[0][2] != "ulysses", found


def test_auto_measures_the_network_between_machines():
    """On a slow link auto takes a method that sends keys and values alone, and fewer bytes."""
    with machines(2) as names:
        slow, networks = zip(*run_ranks(2, choose_with_network, machines=names))
    assert networks[0] == networks[1] and is_slow(networks[0]), networks
    near = run_forks(2, choose)
    assert slow[0] == slow[1] and near[0] == near[1]
    assert slow[0][0] in ("llama3", "zigzag-ring") and "measured rates" in slow[0][1], slow
    assert near[0][0] == "ulysses" and "measured" not in near[0][1], near
