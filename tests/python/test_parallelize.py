"""longspan.parallelize: plain loops on several ranks beside transformers alone on one."""

import re

import pytest
import torch
from hf_models import packed_batches, small_model, train, unpacked, uneven_batches
from forks import run_forks

STEPS = 10


def alone(family, batches, options):
    return train(small_model(family, **options), [unpacked(batch) for batch in batches])


def shared(rank, family, batches, modes, options):
    import torch.distributed as dist

    import longspan

    found = {}
    for mode in modes:
        model, loader = longspan.parallelize(small_model(family, **options), batches, mode=mode,
                                             sequence_parallel_size=dist.get_world_size())
        found[mode] = train(model, loader)
    return found


def close(found, expected):
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours[0] == pytest.approx(theirs[0], abs=1e-5) and ours[1] == pytest.approx(theirs[1], abs=1e-4)
    assert found[1] == pytest.approx(expected[1], abs=1e-5)


@pytest.mark.parametrize("family, size, modes", [
    ("llama", 1, ["auto"]),
    ("llama", 2, ["ulysses", "zigzag-ring"]),
    ("qwen2", 3, ["auto", "striped-ring", "balanced-ulysses"]),
])
def test_plain_loop(family, size, modes):
    for batches in (uneven_batches(STEPS), packed_batches(STEPS), packed_batches(2, (2,))):  # the last: fewer tokens than ranks
        expected = alone(family, batches, {})
        for found in run_forks(size, shared, family, batches, modes, {}):
            for mode in modes:
                close(found[mode], expected)


# Gated delta networks have 4 value heads and 2 key heads: 1 rank has both, with 3 a key head is on two, with 5 a rank has none.
FAMILIES = ["qwen3", "mistral", "phi3", "gemma3_text", "gpt_oss", "qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_text",
            "gemma2", "qwen3_5_moe_text"]
SPLITS = [("zigzag-ring", uneven_batches(3)), ("auto", packed_batches(3)), ("allgather", uneven_batches(3)),
          ("zigzag-ring", packed_batches(3))]


def every_family(rank):
    import torch.distributed as dist

    import longspan

    found = {}
    for number, family in enumerate(FAMILIES):
        mode, batches = SPLITS[number % 4]
        model, loader = longspan.parallelize(small_model(family), batches, mode=mode,
                                             sequence_parallel_size=dist.get_world_size())
        found[number] = train(model, loader)
    return found


@pytest.mark.parametrize("size", [1, 3, 5])
def test_families(size):
    expected = [alone(family, SPLITS[number % 4][1], {}) for number, family in enumerate(FAMILIES)]
    for found in run_forks(size, every_family):
        for number in range(len(FAMILIES)):
            close(found[number], expected[number])


FUSED = [("llama", {}), ("gemma3_text", {}), ("gemma2", dict(final_logit_softcapping=None)), ("qwen3_5_moe_text", {})]


def fused(rank, batches):
    import longspan
    from longspan import _native

    found, counts, call = [], [], _native.call

    def counted(name, *given):
        if name == "summed_token_losses":
            counts.append((given[2] != -100).sum().item())
        return call(name, *given)

    _native.call = counted
    for family, options in FUSED:
        model, loader = longspan.parallelize(small_model(family, **options), batches, sequence_parallel_size=2, fused_loss=True)
        found.append(train(model, loader))
        with torch.no_grad():
            batch = next(iter(loader))
            assert model(**batch).logits is None and len(model(**batch, return_dict=False)) == 1
            del batch["labels"]
            assert model(**batch).logits.shape[-1] == 96
    with pytest.raises(longspan.UsageError, match="ignore_index"):
        model(**next(iter(loader)), ignore_index=7)
    return found, counts


def test_copies():
    """A copy of a model with fused_loss has a head of its own."""
    import copy
    import math

    import longspan

    model, loader = longspan.parallelize(small_model("llama"), uneven_batches(1), sequence_parallel_size=1, fused_loss=True)
    batch = next(iter(loader))
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(twin.lm_head.weight)
    twin(**batch).loss.backward()
    assert twin(**batch).loss.item() == pytest.approx(math.log(96), abs=1e-5) != model(**batch).loss.item()
    assert twin.lm_head.weight.grad is not None and model.lm_head.weight.grad is None


def test_merged_adapters():
    """A model whose adapters were merged has fewer parameters."""
    from peft import LoraConfig, get_peft_model

    import longspan

    adapted = get_peft_model(small_model("llama"), LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    model, loader = longspan.parallelize(adapted, uneven_batches(1), sequence_parallel_size=1)
    batch = next(iter(loader))
    expected = model(**batch).loss.item()
    assert model.merge_and_unload()(**batch).loss.item() == pytest.approx(expected, abs=1e-5)


def test_whole_rows_with_sinks():
    """Models with sinks or softcaps keep the attention that they had."""
    import longspan

    for family in ("gpt_oss", "gemma2"):
        alone, (batch,) = small_model(family), uneven_batches(1, rows=1)
        for layer in alone.model.layers:
            if hasattr(layer.self_attn, "sinks"):
                torch.nn.init.constant_(layer.self_attn.sinks, 2.0)
        expected = alone(**batch).logits
        model, _ = longspan.parallelize(alone, sequence_parallel_size=1)
        with longspan.whole_rows(model):
            torch.testing.assert_close(model(**batch).logits, expected)
        with pytest.raises(longspan.UsageError, match="ignores sinks or softcaps"), longspan.whole_rows(model, "sdpa"):
            pass


def test_fused_loss():
    """The head's losses without logits. Ranks whose tokens have different numbers of labels compute as many losses each."""
    batches = uneven_batches(3)
    batches[0]["labels"][:, :25] = -100
    batches[1]["labels"][:, 25:] = -100
    expected = [alone(family, batches, options) for family, options in FUSED]
    results = run_forks(2, fused, batches)
    for found, _ in results:
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, theirs)
    for counts in zip(*(counts for _, counts in results), strict=True):
        assert max(counts) - min(counts) <= 1 + sum(counts) // 64, counts


def grouped(rank, batches, accumulation):
    """Two groups: each takes every second batch."""
    import longspan

    model, loader = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2)
    return [(batch["shift_labels"] != -100).sum().item() for batch in loader], train(model, loader, accumulation)[0]


def test_groups():
    """Two groups of two ranks: a step has the rows of two batches. The last batch has no partner."""
    batches = uneven_batches(5, rows=1)
    pairs = [{key: torch.cat([pad[key] for pad in batches[i:i + 2]]) for key in batches[0]} for i in (0, 2, 4)]
    expected = alone("llama", pairs, {})[0]
    counts = []
    for labels, found in run_forks(4, grouped, batches, 1):
        close((found, []), (expected, []))
        counts.append(labels)
    assert torch.tensor(counts).sum(0).tolist() == [(pair["labels"][:, 1:] != -100).sum().item() for pair in pairs]


def held_out(rank, batches, others):
    """Losses of a further loader, of batches that each group reads."""
    import longspan

    model, _ = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2)
    loader = longspan.parallelize_loader(torch.nn.parallel.DistributedDataParallel(model), others)
    with torch.no_grad():
        return [model(**batch).loss.item() for batch in loader]


def test_held_out_rows():
    others = uneven_batches(3)[1:]
    model = small_model("llama")
    with torch.no_grad():
        expected = [model(**batch).loss.item() for batch in others]
    assert expected[0] != pytest.approx(expected[1], abs=1e-3)
    for rank, found in enumerate(run_forks(4, held_out, uneven_batches(1), others)):
        assert found == pytest.approx([expected[rank // 2]], abs=1e-5)


def evaluated(rank, batches):
    import longspan

    model, _ = longspan.parallelize(small_model("llama"), sequence_parallel_size=2, token_keys=dict(weights=0.0))
    model.model.layers[0].eval()
    further = [batch | dict(num_items_in_batch=7, weights=batch["labels"]) for batch in batches]
    loader = longspan.parallelize_loader(model, further)
    unlabeled = dict(input_ids=batches[0]["input_ids"])
    for others in ([unlabeled], [unlabeled, batches[1]]):  # on all ranks; in one group alone
        with pytest.raises(longspan.UsageError, match="has no labels"):
            longspan.evaluate(model, longspan.parallelize_loader(model, others))
    found = longspan.evaluate(torch.nn.parallel.DistributedDataParallel(model), loader)
    return found, model.training and not model.model.layers[0].mlp.training


def test_evaluate():
    """The mean over all labels, with two groups, and a last batch without a partner."""
    batches = uneven_batches(3)
    batches[1]["labels"][:, 5:] = -100
    model, total, labels = small_model("llama").eval(), 0.0, 0
    with torch.no_grad():
        for batch in batches:
            count = (batch["labels"][:, 1:] != -100).sum().item()
            total, labels = total + model(**batch).loss.item() * count, labels + count
    for (loss, count), trains in run_forks(4, evaluated, batches):
        assert count == labels and loss == pytest.approx(total / labels, abs=1e-5) and trains


def own_loss(rank, batches):
    """A loop with a loss of its own: the mean of squared log-probabilities."""
    import longspan

    model, loader = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2)
    return [squared(model, batch, batch.pop("shift_labels"), lambda *sums: longspan.mean_loss(model, *sums))
            for batch in loader]


def squared(model, batch, shifted, mean):
    model.zero_grad()
    logits = model(**{key: value for key, value in batch.items() if key != "labels"}).logits.log_softmax(-1)
    own = logits.gather(-1, shifted.clamp(min=0)[..., None])[..., 0].square() * (shifted != -100)
    loss = mean(own.sum(), (shifted != -100).sum())
    loss.backward()
    return loss.item(), torch.nn.utils.get_total_norm([x.grad for x in model.parameters()]).item()


def test_own_loss():
    batches = uneven_batches(2)
    model = small_model("llama")
    expected = [squared(model, batch, torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100),
                        lambda total, count: total / count) for batch in batches]
    for found in run_forks(2, own_loss, batches):
        for ours, theirs in zip(found, expected):
            assert ours == pytest.approx(theirs, rel=1e-5)


def of_pairs(model, batch, shifted, gather):
    """A loss that is no sum over tokens: of the difference between the log-probabilities of a batch's two rows."""
    model.zero_grad()
    logits = model(**{key: value for key, value in batch.items() if "labels" not in key}).logits.log_softmax(-1)
    own = logits.gather(-1, shifted.clamp(min=0)[..., None])[..., 0] * (shifted != -100)
    whole, is_label = gather(own), gather(shifted != -100)
    rows = (whole * is_label).sum(1) / is_label.sum(1)
    loss = -torch.nn.functional.logsigmoid(9 * (rows[0] - rows[1])) + whole.square().mean()
    loss.backward()
    return loss.item(), [x.grad.clone() for x in model.parameters()], whole.detach()


def gathered(rank, batches):
    import longspan

    model, loader = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2, mode="zigzag-ring")
    batch = next(iter(loader))
    wrong = [(torch.ones(2, 3), batch, "this rank's tokens of the batch are"), (torch.ones(2), batch, "values [2], and"),
             (torch.ones_like(batch["labels"], dtype=torch.int8), batch, "values of torch.int8, and takes"),
             (batch["labels"].double(), batch, f"values of [2] of torch.{'float64' if rank % 2 else 'int64'}, without"),
             (batch["labels"], dict(batch, longspan_rows=0), "batch without longspan_rows of this model")]
    for values, given, message in wrong:  # on one rank of each group
        with pytest.raises(longspan.UsageError, match=re.escape(message)):
            longspan.gather_tokens(model, *((values, given) if rank % 2 else (batch["labels"], batch)))
    good = torch.ones((), requires_grad=True)
    for total, items, message in ((good.detach(), None, "total without a gradient, or"), (good, 7, "num_items_in_batch, on a"),
                                  (good[None], 7, "rank 3: mean_loss() got a total"), (1, None, "total that is int")):
        with pytest.raises(longspan.UsageError, match=re.escape(message)):
            longspan.mean_loss(model, *((total, good.detach(), items) if rank == 3 else (good, good.detach())))
    whole = good * longspan.gather_tokens(model, batch["shift_labels"] != -100, batch).sum()
    parts = [longspan.mean_loss(model, total / 2, whole.detach(), 10).detach() for total in (whole, whole.detach())]
    assert parts == [whole.detach() / 2 / 10 * 4] * 2  # the mean of the four is the sum of both groups' totals, divided by 10
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    return of_pairs(wrapped, batch, batch["shift_labels"], lambda own: longspan.gather_tokens(wrapped, own, batch))


def test_gathered_tokens():
    """Losses of whole rows: two groups of two ranks, each with its own batch. The gradient is that of the mean of both losses."""
    batches = uneven_batches(2)
    model = small_model("llama")
    expected = [of_pairs(model, batch, torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100), lambda own: own)
                for batch in batches]
    gradients = [(a + b) / 2 for a, b in zip(expected[0][1], expected[1][1])]
    for rank, (loss, found, whole) in enumerate(run_forks(4, gathered, batches)):
        assert loss == pytest.approx(expected[rank // 2][0], abs=1e-5)
        torch.testing.assert_close(whole, expected[rank // 2][2], rtol=0, atol=1e-5)
        torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-6)


def hidden_losses(rank, batch):
    """Norms of gradients of losses of an output within a tuple, and of a head of the loop's own; messages for a call of a part of
    the model, and for a hook that would see gradients before their mean."""
    import longspan

    model, loader = longspan.parallelize(small_model("llama"), [batch], sequence_parallel_size=2, mode="zigzag-ring")
    own = next(iter(loader))
    shifted, _ = own.pop("shift_labels"), own.pop("labels")
    norm = of_hidden(model, own, shifted, lambda *sums: longspan.mean_loss(model, *sums), longspan.average_gradients)
    with pytest.raises(longspan.UsageError, match="outside of the forward of the model"):
        model.model(**own)
    with torch.no_grad():
        model.model(**own)
    model.lm_head.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    for one, mean in ((model, "Longspan"), (torch.nn.parallel.DistributedDataParallel(model), "DDP")):
        with pytest.raises(longspan.UsageError, match=rf"register_post_accumulate_grad_hook.*: {mean} computes"):
            one(**own)
    with pytest.raises(longspan.UsageError, match="parameters is a Parameter"):
        longspan.average_gradients(model.lm_head.weight)
    return norm


def of_hidden(model, batch, shifted, mean, average):
    torch.manual_seed(3)
    head = torch.nn.Linear(48, 5)
    hidden = head(model(**batch, output_hidden_states=True).hidden_states[1]).square().sum(-1) * (shifted != -100)
    mean(hidden.sum(), (shifted != -100).sum()).backward()
    average(head.parameters())
    return [torch.nn.utils.get_total_norm([x.grad for x in part.parameters() if x.grad is not None]).item() for part in (model, head)]


def test_loss_of_hidden_states():
    batch = uneven_batches(1)[0]
    shifted = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    expected = of_hidden(small_model("llama"), {key: batch[key] for key in ("input_ids", "attention_mask")}, shifted,
                         lambda total, count: total / count, lambda parameters: None)
    assert run_forks(2, hidden_losses, batch) == [pytest.approx(expected, rel=1e-5)] * 2


def masks(rank, batch):
    """Masks of dropout of this rank's tokens, in the forward and in the recomputation of two steps, and the random state
    afterwards. Layers that raise, and layers without dropout, leave the random state as it was."""
    import longspan

    model, loader = longspan.parallelize(small_model("phi3"), [batch], sequence_parallel_size=2)
    model.gradient_checkpointing_enable(dict(use_reentrant=False))
    cut, found, before = next(iter(loader)), [], torch.get_rng_state()
    model.train()(**cut)
    assert torch.get_rng_state().equal(before)

    def dropped(module, given, out):
        out = torch.nn.functional.dropout(out, 0.5)
        found.append(out.detach() == 0)
        return out

    model.model.layers[0].resid_attn_dropout.register_forward_hook(dropped)
    for _ in range(2):
        model(**cut).loss.backward()
    state = torch.get_rng_state()
    model.model.layers[0].register_forward_pre_hook(lambda module, given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**cut)
    assert torch.get_rng_state().equal(state)
    alone, _ = longspan.parallelize(small_model("llama"), sequence_parallel_size=1)  # one group for each rank
    alone.model.layers[0].register_forward_hook(dropped)
    alone.train()(**next(iter(longspan.parallelize_loader(alone, [batch]))))
    return found, state


def test_dropout_of_ranks():
    """All ranks draw different masks, and those that share a row stay in step with their samplers."""
    (one, state), (other, state_of_other) = run_forks(2, masks, uneven_batches(1)[0])
    assert one[0].equal(one[1]) and one[0].shape == other[0].shape and not one[0].equal(other[0])
    assert one[2].equal(one[3]) and not one[2].equal(one[0])
    assert state.equal(state_of_other)
    assert not one[-1].equal(other[-1])


def accumulated(rank, batches):
    import longspan

    model, loader = longspan.parallelize(small_model("llama"), batches, sequence_parallel_size=2)
    return train(model, loader, accumulation=2)


def test_accumulation():
    batches = uneven_batches(6)
    expected = train(small_model("llama"), batches, accumulation=2)
    for found in run_forks(2, accumulated, batches):
        close(found, expected)
