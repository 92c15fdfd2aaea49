"""Norms and gates of transformers' layers by Longspan's operators (fused_layers=True)."""

import copy

import pytest
import ranks  # noqa: F401  puts the built package on sys.path
import torch
from hf_models import Products, small_model, uneven_batches

import longspan
from longspan import _fused_layers, _native


def leaves(*shapes, dtype=torch.double):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(sizes, generator=generator, dtype=dtype).requires_grad_() for sizes in shapes]


def norm(x, weight, eps=1e-3):
    return _native.call("rms_norm", x, weight, eps)[0]


def gate(x, y):
    return _native.call("swiglu", x, y)


CASES = [(norm, (2, 3, 5), (5,)), (norm, (4, 2, 3, 7), (7,)), (gate, (2, 3, 5), (2, 3, 5)), (gate, (40000, 1), (40000, 1))]


@pytest.mark.parametrize("function, shapes", [(function, shapes) for function, *shapes in CASES])
def test_gradcheck(function, shapes):
    inputs = leaves(*shapes)
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    with pytest.raises(ValueError, match="has no second derivative: .*create_graph"):
        torch.autograd.grad(function(*inputs).sum(), inputs, create_graph=True)


@pytest.mark.parametrize("name, shapes, more", [("rms_norm", ((2, 3, 5), (5,)), (1e-6,)), ("swiglu", ((2, 3, 5), (2, 3, 5)), ())])
def test_operators(name, shapes, more):
    torch.library.opcheck(getattr(torch.ops.longspan, name).default, (*leaves(*shapes, dtype=torch.float), *more))


@pytest.mark.parametrize("dtype", [torch.float, torch.bfloat16])
def test_functions_of_transformers(dtype):
    """fp32: a sum of 64 squares and a few products round differently. bf16: transformers also rounds the normalized numbers,
    and silu(gate)."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    tolerance = dict(rtol=70 * 2**-24, atol=1e-6) if dtype == torch.float else dict(rtol=3 * 2**-8, atol=1e-6)
    own = LlamaRMSNorm(64)
    own.weight.data = torch.linspace(-1, 2, 64)
    x, y = (one.detach().to(dtype).transpose(0, 1) for one in leaves((9, 7, 64), (9, 7, 64), dtype=torch.float))
    own = own.to(dtype)
    torch.testing.assert_close(norm(x, own.weight, own.variance_epsilon), own(x), **tolerance)
    torch.testing.assert_close(gate(x, y), torch.nn.functional.silu(x) * y, **tolerance)


def test_mistakes():
    x, weight, other = leaves((3, 5), (5,), (4,))
    for arguments, message in [(("rms_norm", x, other, 1e-6), r"rms_norm: Double \[3, 5\] and Double \[4\]: x must be"),
                               (("rms_norm", x.float(), weight, 1e-6), "both must be fp32 or bf16, or both fp64"),
                               (("rms_norm", x.half(), weight.half(), 1e-6), "both must be fp32 or bf16, or both fp64"),
                               (("swiglu", x, x[:2]), "the same sizes"), (("swiglu", x.half(), x.half()), "fp32, bf16 or fp64")]:
        with pytest.raises(longspan.UsageError, match=message):
            _native.call(*arguments)


@pytest.mark.parametrize("family", sorted(_fused_layers._CLASSES))
def test_models(family, monkeypatch):
    model, batch = small_model(family), uneven_batches(1)[0]
    model.gradient_checkpointing_enable(dict(use_reentrant=False))
    results, counts = [], []
    for options in ({}, dict(fused_layers=True, save_products=True)):
        called, call = [], _native.call
        monkeypatch.setattr(_native, "call", lambda name, *given: called.append(name) or call(name, *given))
        changed, loader = longspan.parallelize(copy.deepcopy(model), [batch], sequence_parallel_size=1, **options)
        with Products() as products:
            loss = changed(**next(iter(loader))).loss
            loss.backward()
        counts.append(products.count)
        monkeypatch.setattr(_native, "call", call)
        results.append((loss, {name: one.grad for name, one in changed.named_parameters()}))
        num_norms = sum(type(one).__name__.endswith("RMSNorm") for one in changed.modules())
        # All run again in the backward, but for the last norm, which is outside of layers.
        assert (called.count("rms_norm"), called.count("swiglu")) == ((2 * num_norms - 1, 4) if options else (0, 0))
    assert counts[0] - counts[1] == 2 * 6  # two layers of seven products, the last one of which no recomputation needs
    (expected, theirs), (loss, ours) = results
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    for name in theirs:
        assert (ours[name] - theirs[name]).norm() <= 1e-5 * theirs[name].norm() + 1e-8, name


def test_refused():
    from peft import LoraConfig, get_peft_model

    for family, options, message in [("gemma2", {}, "fused_layers=True is not possible for gemma2, only for llama"),
                                     ("llama", dict(hidden_act="gelu"), "with hidden_act=gelu, only with silu")]:
        with pytest.raises(longspan.UsageError, match=message):
            longspan.parallelize(small_model(family, **options), sequence_parallel_size=1, fused_layers=True)
    with pytest.raises(longspan.UsageError, match="save_products=True needs save_attention=True"):
        longspan.parallelize(small_model("llama"), sequence_parallel_size=1, save_products=True, save_attention=False)
    model, loader = longspan.parallelize(small_model("llama"), uneven_batches(1), sequence_parallel_size=1, fused_loss=True)
    adapted = get_peft_model(model, LoraConfig(target_modules=["lm_head"]))
    with pytest.raises(longspan.UsageError, match="has 96 numbers for each token"):
        adapted(**next(iter(loader)))


def test_modules_that_others_changed():
    """A forward that another library has set stays."""
    model = small_model("llama")
    kept = model.model.norm.forward = lambda x: x
    longspan.parallelize(model, sequence_parallel_size=1, fused_layers=True)
    assert model.model.norm.forward is kept and "forward" in vars(model.model.layers[0].mlp)
