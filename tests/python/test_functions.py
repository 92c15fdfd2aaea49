"""Functions of one process: losses from hidden states, tiles of tokens, activations outside of the device, fake tensors."""

import contextlib
import math

import pytest
import torch
from ranks import BUILT  # noqa: F401  the package's place

import longspan

UNITS = 2.0**-53
LEAVES = dict(dtype=torch.double, requires_grad=True)


def plain_losses(x, weight, labels, softcap=None):
    logits = x @ weight.t()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def head(tokens=23, dim=16, vocabulary=301):
    torch.manual_seed(0)
    labels = torch.randint(vocabulary, (tokens,))
    labels[3:9] = -100
    return torch.randn(tokens, dim, **LEAVES), torch.randn(vocabulary, dim, **LEAVES), labels


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_linear_cross_entropy(softcap):
    x, weight, labels = head()
    upstream = torch.randn(len(x), dtype=torch.double)
    losses = longspan.linear_cross_entropy(x, weight, labels, softcap=softcap, reduction="none")
    expected = plain_losses(x, weight, labels, softcap)
    pairs = [(losses, expected)]
    pairs += zip(*(torch.autograd.grad((y * upstream).sum(), [x, weight], retain_graph=True) for y in (losses, expected)))
    for found, wanted in pairs:  # sums of at most 301 numbers near 10
        assert (found - wanted).abs().max() < 301 * 10 * UNITS
    total = longspan.linear_cross_entropy(x, weight, labels, softcap=softcap)
    assert abs(total.item() - expected.sum().item()) < 301 * 10 * UNITS
    summed = torch.ops.longspan.summed_token_losses(x, weight, labels, -100, softcap)
    # Gradients of the forward; the second backward and the gradients of other sums compute logits again.
    for y, factor in [(total, 0.5), (total, 0.5), (summed, torch.full_like(upstream, 0.5)), (summed, upstream)]:
        plain = expected if y is summed else expected.sum()
        pairs = zip(*(torch.autograd.grad((one * factor).sum(), [x, weight], retain_graph=True) for one in (y, plain)))
        for found, wanted in pairs:
            assert (found - wanted).abs().max() < 301 * 10 * UNITS
    frozen = [longspan.linear_cross_entropy(x, weight.detach(), labels, softcap=softcap, reduction=reduction).sum()
              for reduction in ("sum", "none")]
    found = [torch.autograd.grad(y, x, retain_graph=True)[0] for y in (frozen[0], *frozen)]  # the second recomputes
    wanted = torch.autograd.grad(expected.sum(), x, retain_graph=True)[0]
    assert all((one - wanted).abs().max() < 301 * 10 * UNITS for one in found)
    for y in (total, losses):
        with pytest.raises(ValueError, match="no second derivative"):
            torch.autograd.grad(y.sum(), [x, weight], create_graph=True, retain_graph=True)
    inputs = [x[:7].detach().requires_grad_(), weight[:40].detach().requires_grad_()]
    targets = labels[:7] % 40
    targets[2] = 7
    function = lambda x, w: longspan.linear_cross_entropy(x, w, targets, ignore_index=7, softcap=softcap, reduction="none")  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs)


def test_linear_cross_entropy_in_bf16():
    x, weight, labels = head(64, 32)
    expected = plain_losses(x.bfloat16().double(), weight.bfloat16().double(), labels)
    # On a CPU the logits are rounded to bf16.
    rounding = 2**-8 * (x @ weight.t()).abs().max()
    for dtype in (torch.bfloat16, torch.float):  # of the weight
        inputs = [x.detach().bfloat16().requires_grad_(), weight.detach().bfloat16().to(dtype).requires_grad_()]
        losses = longspan.linear_cross_entropy(*inputs, labels, reduction="none")
        assert losses.dtype == torch.float and (losses - expected).abs().max() < rounding
        gradients = torch.autograd.grad(losses.sum(), inputs)
        wanted = torch.autograd.grad(expected.sum(), [x, weight], retain_graph=True)
        for found, exact, leaf in zip(gradients, wanted, inputs):
            assert found.dtype == leaf.dtype and (found - exact).norm() < 2**-5 * exact.norm()


def test_head_without_labels():
    x, weight, labels = head()
    loss = longspan.linear_cross_entropy(x, weight, torch.full_like(labels, -100))
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, [x, weight]))
    module = longspan.LinearCrossEntropy(16, 301, reduction="none", dtype=torch.double)
    losses = module(x.view(1, 23, 16), labels.view(1, 23))
    assert losses.shape == (1, 23) and torch.allclose(losses[0], plain_losses(x, module.weight, labels))


@pytest.mark.parametrize("changes, sentence", [
    (dict(x=torch.zeros(2, 3, 16)), "x must be [tokens, dim]"),
    (dict(x=torch.zeros(23, 15)), "the same dim"),
    (dict(x=torch.zeros(22, 16)), "the same tokens"),
    (dict(labels=torch.zeros(23)), "labels must be int64"),
    (dict(labels=torch.full((23,), 301)), "a label is 301"),
    (dict(labels=torch.full((23,), -1)), "a label is -1"),
    (dict(weight=torch.zeros(301, 16, dtype=torch.long)), "must be floating-point"),
    (dict(softcap=0.0), "softcap is 0"),
    (dict(reduction="mean"), "must be 'sum' or 'none'"),
])
def test_misuse_of_the_head(changes, sentence):
    x, weight, labels = head()
    with pytest.raises(longspan.UsageError) as caught:
        longspan.linear_cross_entropy(**(dict(x=x, weight=weight, labels=labels) | changes))
    assert sentence in str(caught.value)


def test_tiled_mlp():
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.SiLU(), torch.nn.Linear(64, 8)).double()
    x = torch.randn(2, 19, 8, **LEAVES)
    sizes = []
    mlp[1].register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[-2]))
    leaves = [x, *mlp.parameters()]
    expected = mlp(x)
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    sizes.clear()
    for tiled in (longspan.TiledMLP(mlp, 5), longspan.TiledMLP(mlp)):
        y = tiled(x)
        gradients = torch.autograd.grad(y.square().sum(), leaves)
        for found, exact in zip([y, *gradients], [expected, *wanted]):
            assert (found - exact).abs().max() < 64 * 38 * 8 * UNITS * exact.abs().max()
    # In the forward, and again in the backward.
    assert sizes == [5, 5, 5, 4] + [4, 5, 5, 5] + [8, 8, 3] + [3, 8, 8]
    assert torch.autograd.gradcheck(lambda x: longspan.tiled_mlp(mlp, x, 2), [x[:1, :3].detach().requires_grad_()])
    with torch.no_grad():
        assert torch.equal(longspan.tiled_mlp(mlp, x, 19), expected)
    for arguments, sentence in [((mlp, x, 0), "tile_tokens is 0"), ((mlp, x[0, 0]), "must be [..., tokens, dim]")]:
        with pytest.raises(longspan.UsageError, match=sentence.replace("[", r"\[").replace("...", r"\.\.\.")):
            longspan.tiled_mlp(*arguments)


def test_offloaded_activations(tmp_path):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]

    def gradients(place, x):
        with place:
            for layer in layers:
                x = torch.tanh(layer(x).t()).t()  # a view that is not contiguous is saved
        return torch.autograd.grad(x.sum(), [p for layer in layers for p in layer.parameters()])

    x = torch.randn(128, 64)
    expected = gradients(contextlib.nullcontext(), x)
    on_disk = longspan.offload_activations(tmp_path, min_bytes=1)
    in_memory = longspan.offload_activations(min_bytes=1)
    for place in (on_disk, in_memory):
        for found, exact in zip(gradients(place, x), expected):
            assert torch.equal(found, exact)
    # Each layer saves its input and the result of tanh, and its weight, which stays.
    assert on_disk.file_bytes == 8 * x.nbytes and not list(tmp_path.iterdir())
    assert in_memory.file_bytes == 0  # tensors of the CPU stay
    small = longspan.offload_activations(tmp_path, min_bytes=1 << 20)
    gradients(small, x)
    assert small.file_bytes == 0
    (tmp_path / "file").touch()
    with pytest.raises(longspan.UsageError, match="cannot be made"):
        longspan.offload_activations(tmp_path / "file" / "folder")
    with pytest.raises(longspan.UsageError, match="min_bytes is -1"):
        longspan.offload_activations(min_bytes=-1)


def test_offloaded_activations_that_are_changed_in_place(tmp_path):
    in_memory, on_disk = longspan.offload_activations(min_bytes=1), longspan.offload_activations(tmp_path, min_bytes=1)
    for place in (in_memory, on_disk, longspan.offload_activations(tmp_path, min_bytes=1 << 20)):
        x = torch.randn(64, requires_grad=True)
        with place:
            y = x.exp()
            y.add_(1)
        with pytest.raises(longspan.UsageError, match="changed in place 1 times"):
            y.sum().backward()
    assert on_disk.file_bytes > 0


def attention_inputs():
    torch.manual_seed(0)
    return [torch.randn(12, heads, 8, **LEAVES) for heads in (4, 2, 2)] + [torch.randn(4, **LEAVES)]


def arguments_of_operators():
    q, k, v, sinks = attention_inputs()
    x, weight, labels = head()
    net = [torch.randn(sizes, **LEAVES) for sizes in ((12, 28), (12, 4), (12, 4), (28, 1, 4), (4,), (4,))]
    return [
        ("attend", (q, k, v, sinks, None, "", "local", [0, 0, 0], 0.3, None, None, 60)),
        ("attend", (q, k, v, None, torch.tensor([5, 0, 7, 0]), "", "auto", [0, 0, 0], 0.3, 5, 2.0, 60)),
        ("token_losses", (x, weight, labels, -100, 2.0)),
        ("seq_to_heads", (q, "", [0, 1], 0, 1, 0, 60)),
        ("heads_to_seq", (q, "", [0, 1], 1, 0, None, 0, 60)),
        ("sum_of_ranks", (q, "", 60)),
        ("gated_delta_net", (*net, [2, 4, 4, 3], [5, 7], "", "local", [0, 0, 0], [6, 2, 8, 8], 60)),
    ]


@pytest.mark.parametrize("name, arguments", arguments_of_operators())
def test_operators(name, arguments):
    torch.library.opcheck(getattr(torch.ops.longspan, name).default, arguments)


def test_fake_tensors(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    called, own = [], longspan._native.call
    monkeypatch.setattr(longspan._native, "call", lambda name, *given: called.append(name) or own(name, *given))
    with FakeTensorMode():
        q, k, v = (torch.empty(12, heads, 8, dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2, 2))
        y = longspan.attention(q, k, v)
        y = longspan.gather_heads_scatter_seq(longspan.gather_seq_scatter_heads(y, 0, 1), 1, 0)
        loss = longspan.linear_cross_entropy(y.flatten(1), torch.empty(99, 32), torch.empty(12, dtype=torch.long))
        longspan.reduce_sequence_parallel_loss(loss, 12).backward()
        assert y.shape == (12, 4, 8) and loss.dtype == torch.float and k.grad.shape == k.shape
    meta = [torch.empty(12, heads, 8, device="meta", requires_grad=True) for heads in (4, 2, 2)]
    longspan.reduce_sequence_parallel_loss(longspan.attention(*meta).sum(), 12).backward()
    assert "sum_of_ranks" in called and "compare_calls" not in called
    assert meta[2].grad.shape == (12, 2, 8)


def test_compiled_attention_serves_all_rows():
    q, k, v, sinks = attention_inputs()
    function = torch.compile(lambda q, k, v, s, row: longspan.attention(q, k, v, cu_seqlens=row, sinks=s) * 2, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for row in ([0, 4, 12], [0, 1, 12]):
            y = function(q, k, v, sinks, torch.tensor(row))
            out = longspan.attention(q, k, v, cu_seqlens=row, sinks=sinks)
            assert "Traced" not in out.grad_fn.name()  # its backward computes nothing again
            expected = out * 2
            both = [torch.autograd.grad(x.square().sum(), [q, k, v, sinks]) for x in (y, expected)]
            for found, exact in zip([y, *both[0]], [expected, *both[1]]):
                assert torch.equal(found, exact)
        with pytest.raises(ValueError, match="begins with 0|must begin with 0"):  # compiled, or after as many compilations as dynamo allows
            function(q, k, v, sinks, torch.tensor([2, 5, 14]))


def test_gradients_of_attention():
    *inputs, sinks = attention_inputs()
    inputs = [x[:6].detach().requires_grad_() for x in inputs]
    tree = [longspan.Document(2, (longspan.Document(1), longspan.Document(2))), 1]
    assert torch.autograd.gradcheck(lambda q, k, v: longspan.attention(q, k, v, documents=tree, window=3, softcap=2.0), inputs)
    assert torch.autograd.gradcheck(lambda q, k, v, s: longspan.attention(q, k, v, cu_seqlens=[0, 4, 6], sinks=s),
                                    [*inputs, sinks])


def test_documents():
    tree = longspan.Document(5, (longspan.Document(2), longspan.Document(3, (longspan.Document(1), longspan.Document(4)))))
    assert tree.num_tokens == 15
    assert tree.positions() == [0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 8, 9, 10, 11]
    kind = longspan.Heads(4, 2, 8, 8)
    order = longspan.token_order(longspan.share(kind), [3, tree], kind)
    assert order.documents == (3, tree) and order.index.tolist() == list(range(18))
    for mistake, sentence in [(lambda: longspan.Document(0), "length is 0"), (lambda: longspan.Document(2, (tree,)), "1 branch"),
                              (lambda: longspan.attention(*attention_inputs()[:3], documents=[12], cu_seqlens=[0, 12]), "both given"),
                              (lambda: longspan.attention(*attention_inputs()[:3], documents=[12, -1]), "a length is -1")]:
        with pytest.raises(longspan.UsageError, match=sentence):
            mistake()


def mistakes_of_attention():
    q, k, v, _ = attention_inputs()
    kind = longspan.Heads(4, 2, 8, 8)
    nothing = "at least one token, head and element"
    tensors = [(q[:0], k[:0], v[:0]), (q[:, :0], k[:, :0], v[:, :0]), (q, k[:, :0], v[:, :0]), (q[..., :0], k[..., :0], v)]
    cases = [(lambda x=x: longspan.attention(*x), nothing) for x in tensors]
    cases += [(lambda keys=keys: longspan.attention(q, k, v, **keys), sentence) for keys, sentence in [
        *((dict(scale=scale), f"scale is {scale}, and must be positive") for scale in (0, -0.5, math.inf, math.nan)),
        (dict(scale=torch.ones((), requires_grad=True)), "multiply q by it"),
        (dict(window=2.5), "window is 2.5"),
        (dict(documents=[2.5, 9.5]), "a length is 2.5"),
        (dict(cu_seqlens=[0, 2.5, 12]), "a number is 2.5"),
        (dict(cu_seqlens=torch.tensor([0, 2.5, 12])), "cu_seqlens is torch.float32"),
    ]]
    return cases + [
        (lambda: longspan.Document(3.5), "length is 3.5"),
        (lambda: longspan.share(longspan.Heads(0, 0, 0, 0)), "each must be at least 1"),
        (lambda: longspan.share(longspan.Heads(3, 2, 8, 8)), "must be a multiple of num_kv_heads, 2"),
        (lambda: longspan.token_order(longspan.share(kind), [12], kind, multiple=0), "multiple is 0"),
    ]


@pytest.mark.parametrize("mistake, sentence", mistakes_of_attention())
def test_misuse_of_attention(mistake, sentence):
    with pytest.raises(longspan.UsageError) as caught:
        mistake()
    assert sentence in str(caught.value)


def test_unknown_groups():
    from longspan import _native

    q, k, v, _ = attention_inputs()
    for name, arguments in [("attend", (q, k, v, None, None, "nowhere", "ulysses", [0, 0, 0], 0.3, None, None, 60)),
                            ("seq_to_heads", (q, "nowhere", [0, 2], 0, 1, 0, 60)), ("sum_of_ranks", (q, "nowhere", 60))]:
        with pytest.raises(longspan.UsageError, match="init_process_group"):
            _native.call(name, *arguments)
    with pytest.raises(longspan.UsageError, match="rank 0 of 1, and the call is for 0 of 2"):
        _native.call("seq_to_heads", q, "", [0, 2], 0, 1, 0, 60)
