"""torch.autocast, and models in bf16: gradients are as near to those in fp32 as those of transformers alone are."""

import pytest
import torch
from forks import run_forks
from hf_models import small_model, uneven_batches
from hf_trainer import logs_of, trainer_of

import longspan

# Rounding errors of both are of the same size; a wrong dtype or a missing cast raises an error or loses a rank's part.
TIMES_THE_ERROR = 1.5


def gradients(model, batch, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(**batch).loss
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def model_of(family, kind):
    return small_model(family).to(torch.bfloat16 if kind == "bf16" else torch.float32)


def shared(rank, family, kind, size, options):
    from longspan._registry import state_of_model

    model = model_of(family, kind)
    if options.pop("checkpointing", False):
        model.gradient_checkpointing_enable(dict(use_reentrant=False))
    passes = options.pop("passes_states", None)
    model, loader = longspan.parallelize(model, uneven_batches(1), sequence_parallel_size=size, **options)
    if passes is not None:
        state_of_model(model).passes_states = passes
    return gradients(model, next(iter(loader)), kind == "autocast")


@pytest.mark.parametrize("kind", ["autocast", "bf16"])
@pytest.mark.parametrize("family, size, options", [
    ("llama", 2, dict(fused_loss=True, mode="ulysses", checkpointing=True)), ("gpt_oss", 2, {}), ("qwen3_moe", 1, {}),
    ("gemma3_text", 2, dict(mode="zigzag-ring", checkpointing=True)), ("qwen3_5_text", 2, dict(passes_states=True)), ("qwen3_5_text", 5, {}),
])
def test_gradients(family, size, options, kind):
    (batch,) = uneven_batches(1)
    exact_loss, exact = gradients(model_of(family, "fp32"), batch, False)
    loss, theirs = gradients(model_of(family, kind), batch, kind == "autocast")
    for found_loss, found in run_forks(size, shared, family, kind, size, options):
        assert found_loss == pytest.approx(exact_loss, abs=abs(loss - exact_loss) + 2**-8 * exact_loss)  # logits have 8 bits
        assert (found - exact).norm() < TIMES_THE_ERROR * (theirs - exact).norm()


def project(x, weights, heads):
    """The projections around an attention in whole rows, by torch."""
    q, k, v = (torch.nn.functional.linear(x, weights[i], weights[3 + i]).unflatten(-1, (heads, -1)) for i in range(3))
    return torch.nn.functional.linear((q * k + v).flatten(-2), weights[6], weights[7])


def projected(rank, x, weights, heads):
    """As project(), by the functions that exchange heads and tokens. x: of the whole row."""
    own = x[:, rank * x.shape[1] // 2:(rank + 1) * x.shape[1] // 2]
    group = torch.distributed.group.WORLD
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = longspan.async_ulysses_qkv_projection(own, 1, 2, weights[0], weights[3], weights[1], weights[4], weights[2],
                                                        weights[5], head_dim=8, group=group)
        y = longspan.async_ulysses_output_projection(q * k + v, 1, 2, weights[6], weights[7], group=group)
    gradients = [g.double() for g in torch.autograd.grad(y.float().square().sum(), weights)]
    for gradient in gradients:
        torch.distributed.all_reduce(gradient)
    return gradients


def test_projections():
    torch.manual_seed(3)
    heads, dim = 3, 24
    x = torch.randn(1, 64, dim)
    weights = [(torch.randn(*shape) / dim**0.5).requires_grad_() for shape in [(dim, dim)] * 3 + [(dim,)] * 3 + [(dim, dim), (dim,)]]
    exact = torch.autograd.grad(project(x, weights, heads).square().sum(), weights)
    with torch.autocast("cpu", torch.bfloat16):
        y = project(x, weights, heads)
    theirs = torch.autograd.grad(y.float().square().sum(), weights)
    for found in run_forks(2, projected, x, weights, heads):
        for ours, torchs, right in zip(found, theirs, exact, strict=True):
            assert (ours - right).norm() < TIMES_THE_ERROR * (torchs - right).norm()


def train(rank, folder, size):
    trainer = trainer_of(f"{folder}/{size}", small_model("llama"), bf16=True)
    if size:
        longspan.parallelize_trainer(trainer, sequence_parallel_size=size, mode="ulysses")
    return logs_of(trainer)


def test_trainer(tmp_path):
    """Trainer's bf16=True on two ranks, beside Trainer alone. A loss has the rounding of its logits."""
    ((expected, evaluated),) = run_forks(1, train, tmp_path, 0)
    for found in run_forks(2, train, tmp_path, 2):
        for ours, theirs in zip(found[0], expected, strict=True):
            assert ours == pytest.approx(theirs, rel=2**-8)
        assert found[1] == pytest.approx(evaluated, rel=2**-8)
