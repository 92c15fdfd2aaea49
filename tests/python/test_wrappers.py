"""Wrappers around a parallelized model, beside transformers alone on one process."""

import pytest
import torch
from forks import run_forks
from hf_models import small_model, train, uneven_batches

import longspan

STEPS = 4


def checkpointed(model):
    model.gradient_checkpointing_enable(dict(use_reentrant=False))
    return model


def checkpointed_reentrant(model):
    model.gradient_checkpointing_enable(dict(use_reentrant=True))
    return model


def ddp(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp2(model):
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def fsdp2_without_layers(model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def fsdp2_kept_whole(model):
    """Layers whose parameters are whole between the forward and the backward."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer, reshard_after_forward=False)
    return fully_shard(model, reshard_after_forward=False)


def fsdp2_before(model):
    """fsdp2() that comes before parallelize()."""
    return model


def replicated(model):
    """torch's DDP of FSDP2's parts."""
    from torch.distributed._composable.replicate_with_fsdp import replicate

    for layer in model.model.layers:
        replicate(layer)
    return replicate(model)


def compiled(model):
    return torch.compile(model, backend="eager")


def train_wrapped(rank, family, wrap, batches, options):
    from longspan._registry import state_of_model

    model = small_model(family, **options)
    if wrap is fsdp2_before:
        fsdp2(model)
    model, loader = longspan.parallelize(model, batches, sequence_parallel_size=2, mode="zigzag-ring",
                                         fused_loss=family == "llama" and wrap in (ddp, fsdp2))
    state_of_model(model).passes_states = family == "qwen3_5_text"
    return train(wrap(model), loader, evaluated=0 if wrap is compiled else 2)


def accelerated(rank, batches):
    """A loop of accelerate, whose accumulation takes two batches a step."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, loader = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-2))
    results, losses = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            losses.append(loss.item())
            if accelerator.sync_gradients:
                results.append((sum(losses) / 2, accelerator.clip_grad_norm_(model.parameters(), 1.0).item()))
                losses = []
            optimizer.step()
            optimizer.zero_grad()
    return results


def sharded_by_deepspeed(rank, stages, batches):
    """Losses and norms of gradients under DeepSpeed's ZeRO. A stage below 0: DeepSpeed comes before parallelize()."""
    import deepspeed

    early, cut = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2, save_products=True)
    found = []
    for stage in stages:
        optimizer = torch.optim.AdamW((model := small_model("llama")).parameters(), lr=1e-3, eps=1e-2)
        config = dict(train_micro_batch_size_per_gpu=2, gradient_clipping=1.0, zero_optimization=dict(stage=abs(stage)),
                      zero_allow_untested_optimizer=True)
        if stage > 0:
            _, loader = longspan.parallelize(model, batches, sequence_parallel_size=2)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        if stage < 0:
            _, loader = longspan.parallelize(engine.module, batches, sequence_parallel_size=2)
        steps = []
        for batch in loader:
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            steps.append((loss.item(), float(engine.get_global_grad_norm())))
        found.append(steps)
    if 3 in stages:  # DeepSpeed has replaced torch.nn.functional.linear
        with pytest.raises(longspan.UsageError, match="deepspeed.* has replaced it: .*memory_efficient_linear"):
            early(**next(iter(cut)))
    return found


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == (pytest.approx(theirs[0], abs=1e-5), pytest.approx(theirs[1], abs=1e-4))


FSDP2 = [fsdp2_without_layers, fsdp2_kept_whole, fsdp2_before, replicated]


@pytest.mark.parametrize("family, wrap", [
    ("llama", checkpointed), ("qwen3_5_text", checkpointed), ("llama", checkpointed_reentrant), ("llama", ddp),
    ("qwen3_5_text", ddp), ("llama", fsdp2), ("qwen3_5_text", fsdp2), ("llama", compiled),
    *(("llama", wrap) for wrap in FSDP2),
])
def test_wrapper(family, wrap):
    batches, options = uneven_batches(STEPS), {}
    if wrap in (compiled, *FSDP2):  # slow, or one more case
        batches, options = batches[:2], dict(num_hidden_layers=1)
    expected = train(small_model(family, **options), batches)
    for found in run_forks(2, train_wrapped, family, wrap, batches, options):
        close(found[0], expected[0])
        assert found[1] == pytest.approx(expected[1][: len(found[1])], abs=1e-5)


def compiled_beside_eager(rank, batches):
    """The largest differences of the losses and of gradients between torch.compile's inductor and the eager model. Batches of other
    documents need no other graphs."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # no further processes
    model, loader = longspan.parallelize(small_model("llama", num_hidden_layers=1), batches, sequence_parallel_size=2)
    cuts, found = list(loader), []
    for one in (model, torch.compile(model)):
        found.append([])
        for number, cut in enumerate(cuts):
            model.zero_grad()
            with torch._dynamo.config.patch(error_on_recompile=number > 0):
                loss = one(**cut).loss
            loss.backward()
            found[-1] += [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    return [(ours - theirs).abs().max().item() for ours, theirs in zip(*found, strict=True)]


@pytest.mark.long
def test_inductor():
    for differences in run_forks(2, compiled_beside_eager, uneven_batches(2), timeout=900):
        assert len(differences) == 26 and max(differences) < 1e-5, differences


def fsdp1(rank, batches):
    """Errors of a model within FSDP1, whose parameters are flattened, and are views of a flat one."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    errors = []
    for keeps_parameters in (False, True):
        model, loader = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2)
        model = FullyShardedDataParallel(model, use_orig_params=keeps_parameters, device_id=torch.device("cpu"))
        with pytest.raises(longspan.UsageError) as caught:
            model(**next(iter(loader)))
        errors.append(str(caught.value))
    return errors


def test_fsdp1_is_refused():
    for found in run_forks(2, fsdp1, uneven_batches(1)):
        assert all("FSDP1" in error for error in found)


@pytest.mark.parametrize("stages", [[3, -3], pytest.param([1, 2], marks=pytest.mark.long)])
def test_deepspeed(stages):
    batches = uneven_batches(STEPS)
    expected, _ = train(small_model("llama"), batches, evaluated=0)
    for found in run_forks(2, sharded_by_deepspeed, stages, batches):
        for steps in found:
            close(steps, expected)


def test_accelerate():
    batches = uneven_batches(STEPS)
    expected, _ = train(small_model("llama"), batches, accumulation=2)
    for found in run_forks(2, accelerated, batches):
        close(found, expected)
