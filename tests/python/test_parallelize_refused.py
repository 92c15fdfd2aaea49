"""longspan.parallelize refuses by name everything that it cannot serve, on every rank."""

import dataclasses
import re
import tempfile

import pytest
import torch
from forks import run_forks
from hf_models import small_model, uneven_batches
from hf_trainer import trainer_of

import longspan


def refused(message, function, *arguments, **named):
    with pytest.raises(longspan.UsageError, match=re.escape(message)):
        function(*arguments, **named)


def parallel(model, batches=None, **named):
    return longspan.parallelize(model, batches, **dict(sequence_parallel_size=1) | named)


def test_models():
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

    refused("sequence_parallel_size=2, and there are 1 ranks", parallel, small_model("llama"), sequence_parallel_size=2)
    refused("rings is not a mode", parallel, small_model("llama"), mode="rings")
    refused("attention_dropout is 0.1", parallel, small_model("llama", attention_dropout=0.1))
    bloom = AutoModel.from_config(AutoConfig.for_model("gpt_neox", hidden_size=16, num_hidden_layers=1,
                                                       num_attention_heads=2, intermediate_size=16, vocab_size=16))
    refused("model type gpt_neox was never compared", parallel, bloom)
    t5 = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", d_model=16, d_ff=16, num_layers=1, num_heads=2,
                                                                d_kv=8, vocab_size=16))
    refused("an encoder and a decoder", parallel, t5)
    refused("must be a model of transformers", parallel, torch.nn.Linear(2, 2))
    refused("takeover='no'", parallel, small_model("llama"), takeover="no")
    for name, value in (("sequence_parallel_size", 1.0), ("sequence_parallel_size", 0), ("ulysses_degree", 0), ("num_tokens", -5),
                        ("timeout", 0)):
        refused(f"{name} is {value}, and must be an integer from 1 on", parallel, small_model("llama"), **{name: value})
    for keys in (["weights"], 5, dict(weights="0"), {1: 0.0}):
        refused(f"token_keys is {keys!r}, and must map", parallel, small_model("llama"), token_keys=keys)
    refused("timeout is None, and must be", parallel, small_model("llama"), timeout=None)
    refused("the model is a NoneType, and must be", parallel, None)
    refused("token_keys has labels, seq_idx, which", parallel, small_model("llama"), token_keys=dict(seq_idx=0, labels=-100, w=0))
    model, _ = parallel(small_model("llama"))
    refused("was called for this model before", parallel, model)
    refused("fused_loss=True is not possible for gemma2 with final_logit_softcapping=30.0", parallel, small_model("gemma2"),
            fused_loss=True)
    refused("final_logit_softcapping=3.0", parallel, small_model("gemma3_text", final_logit_softcapping=3.0), fused_loss=True)
    biased = small_model("llama")
    biased.lm_head = torch.nn.Linear(48, 96)
    refused("without bias", parallel, biased, fused_loss=True)
    # A model that was refused is as it was: a retry finds the attention that the model had.
    attention = biased.config._attn_implementation
    retried, _ = parallel(biased)
    with longspan.whole_rows(retried):
        assert retried.config._attn_implementation == attention != "longspan"
    from transformers import (AutoModelForSequenceClassification, AutoModelForTokenClassification, GPT2DoubleHeadsModel,
                              LlamaPreTrainedModel)

    for kind in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
        refused("other heads than a language model's", parallel, kind.from_config(small_model("llama").config), allow_unchecked=True)
    tiny = AutoConfig.for_model("gpt2", n_embd=16, n_layer=1, n_head=2, vocab_size=16)
    refused("other heads than a language model's", parallel, GPT2DoubleHeadsModel(tiny), allow_unchecked=True)
    unknown = type("Speaker", (LlamaPreTrainedModel,), {})(small_model("llama").config)
    unknown.model = small_model("llama").model
    refused("other heads than a language model's", parallel, unknown)
    parallel(unknown, allow_unchecked=True)
    parallel(AutoModel.from_config(small_model("llama").config))
    own = small_model("llama")
    own.loss_function = lambda *given, **named: None
    refused("takes transformers' own loss", parallel, own, fused_loss=True)


def test_batches():
    batch = uneven_batches(1)[0]
    ids, mask = batch["input_ids"], batch["attention_mask"]

    def cut(changes):
        model, loader = parallel(small_model("llama"), [batch | changes])
        return next(iter(loader))

    assert cut({})["input_ids"].tolist() == ids.tolist()
    nothing = cut(dict(attention_mask=mask * torch.tensor([[1], [0]]), labels=ids.masked_fill(torch.arange(2)[:, None] == 1, -100)))
    assert nothing["input_ids"][1].tolist() == [0] * 41 and nothing["longspan_rows"].documents[1] == (41,)
    weighted = parallel(small_model("llama"), [batch | dict(weights=ids * 0.5)], token_keys=dict(weights=0.0))[1]
    assert next(iter(weighted))["weights"].tolist() == (ids * mask * 0.5).tolist()
    refused("the batch has words", cut, dict(words=ids))
    refused("attention_mask is [2, 1, 41, 41]", cut, dict(attention_mask=torch.ones(2, 1, 41, 41)))
    refused("other values than 0 and 1", cut, dict(attention_mask=mask * 2))
    refused("zeros between ones", cut, dict(attention_mask=mask * (torch.arange(41) != 9)))
    refused("labels where attention_mask is 0", cut, dict(labels=ids))
    refused("labels of a batch is [2, 40]", cut, dict(labels=ids[:, 1:]))
    refused("input_ids of a batch is [41]", cut, dict(input_ids=ids[0]))
    refused("cu_seq_lens_q [0, 41]", cut, dict(cu_seq_lens_q=torch.tensor([0, 41])))
    refused("was cut before", cut, dict(longspan_rows=0))
    one, both = torch.arange(41)[None], torch.arange(41).expand(2, 41)
    assert cut(dict(position_ids=one))["position_ids"].equal(cut(dict(position_ids=both))["position_ids"])
    refused("position_ids of a batch is [41], and must be [2, 41] as input_ids, or [1, 41]", cut, dict(position_ids=one[0]))
    refused("position_ids of a batch is of torch.float32", cut, dict(position_ids=both.float()))


def test_documents_that_disagree():
    """Keys that state documents are taken alone, and beside others are compared with them."""
    ids = torch.arange(1, 13)[None]
    positions, ends = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]]), torch.tensor([0, 5, 12], dtype=torch.int32)
    number = torch.tensor([[4] * 5 + [5] * 7], dtype=torch.int32)

    def cut(**keys):
        return next(iter(parallel(small_model("llama"), [dict(input_ids=ids, labels=ids) | keys])[1]))

    for keys in (dict(cu_seq_lens_k=ends), dict(seq_idx=number), dict(cu_seq_lens_q=ends, seq_idx=number, max_length_q=7),
                 dict(position_ids=positions, cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=7, max_length_k=99, seq_idx=number)):
        found = cut(**keys)
        assert found["longspan_rows"].documents == ((5, 7),) and found["position_ids"].equal(positions), keys
        assert set(found) == {"input_ids", "labels", "shift_labels", "position_ids", "longspan_rows"}
    whole = torch.arange(12)[None]
    for keys in (dict(position_ids=whole, cu_seq_lens_q=ends), dict(position_ids=whole, cu_seq_lens_k=ends),
                 dict(position_ids=whole, seq_idx=number), dict(cu_seq_lens_q=ends, cu_seq_lens_k=torch.tensor([0, 4, 12])),
                 dict(cu_seq_lens_q=ends, max_length_q=6), dict(max_length_k=11),
                 dict(cu_seq_lens_q=ends, attention_mask=(ids < 12).int())):
        refused(f"{list(keys)[-1] if 'attention_mask' not in keys else 'cu_seq_lens_q'} of a batch states", cut, **keys)
    refused("seq_idx of a batch is [12]", cut, seq_idx=number[0])
    refused("cu_seq_lens_q of a batch is [2, 3] of torch.int32", cut, cu_seq_lens_q=ends.expand(2, 3))
    refused("cu_seq_lens_k of a batch is [3] of torch.float32", cut, position_ids=positions, cu_seq_lens_k=ends.float())
    refused("max_length_q of a batch is a str", cut, max_length_q="7")
    # Documents without tokens, a row of borders, and padding whose positions are 0, or which counts as one document.
    for given in ([0, 5, 5, 12], [0, 0, 5, 12, 12, 12], ends[None]):
        for keys in (dict(cu_seq_lens_q=given, max_length_q=torch.tensor([7])), dict(position_ids=positions, cu_seq_lens_k=given)):
            assert cut(**keys)["longspan_rows"].documents == ((5, 7),), keys
    ragged = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0]])
    unnumbered = torch.tensor([[0] * 5 + [1] * 4 + [-1] * 3])
    for given, lengths in ((ragged, (5, 4, 1, 1, 1)), (torch.cat([ragged[:, :9], torch.arange(3)[None]], 1), (5, 4, 3))):
        assert cut(position_ids=given, seq_idx=unnumbered)["longspan_rows"].documents == (lengths,)
        refused("seq_idx of a batch states", cut, position_ids=given, seq_idx=unnumbered.clamp(max=0))
        refused("seq_idx of a batch states", cut, position_ids=given, seq_idx=number)
    nothing = dict(input_ids=ids.expand(2, 12), attention_mask=torch.tensor([[1], [0]]).expand(2, 12),
                   labels=torch.stack([ids[0], torch.full((12,), -100)]), seq_idx=number.expand(2, 12))
    assert cut(**nothing)["longspan_rows"].documents[0] == (5, 7)
    padded = cut(attention_mask=(ids < 12).int(), labels=ids.masked_fill(ids == 12, -100), seq_idx=number)
    assert padded["longspan_rows"].documents == ((5, 6),)


def test_keys_of_a_refused_batch():
    """Loops treat all ranks' batches alike until the forward refuses one of them."""
    ids = torch.arange(1, 13)[None]
    wrong = dict(cu_seq_lens_q=torch.zeros(2, 2, dtype=torch.int32))
    for keys in ({}, dict(labels=ids), dict(shift_labels=ids, weights=ids * 0.5)):
        _, loader = parallel(small_model("llama"), [dict(input_ids=ids) | keys], token_keys=dict(weights=0.0))
        good = next(iter(loader))
        of_two = dataclasses.replace(loader.cutter, size=2)
        bad = of_two(dict(input_ids=ids) | keys | wrong)
        assert set(bad) == set(good) and "cu_seq_lens_q of a batch is [2, 2]" in bad["longspan_rows"].failure
        assert {name: bad[name].dtype for name in bad if name != "longspan_rows"} == {
            name: good[name].dtype for name in good if name != "longspan_rows"}
    assert "a batch is a list" in of_two([ids])["longspan_rows"].failure


def test_device_of_tables(monkeypatch):
    """A group without a backend for CPUs exchanges tables on its GPUs, so that no other connections are made."""
    import torch.distributed as dist

    from longspan._loss import device_of

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for backend, device in (("nccl", "cuda:3"), ("cuda:nccl", "cuda:3"), ("gloo", "cpu"), ("cpu:gloo,cuda:nccl", "cpu")):
        config = str(dist.distributed_c10d.BackendConfig(dist.Backend(backend)))
        monkeypatch.setattr(dist, "get_backend_config", lambda group, config=config: config)
        assert device_of(None) == torch.device(device), config


def test_batches_of_a_device():
    """Numbers that a cut makes are on the device of the batch, and loops move the rows as they move tensors."""
    from longspan._rows import Rows, positions_of, take

    ids = torch.empty(1, 12, dtype=torch.int64, device="meta")
    for borders in ({}, dict(cu_seq_lens_q=[0, 5, 12]), dict(seq_idx=torch.empty(1, 12, dtype=torch.int32, device="meta"))):
        assert positions_of(ids, borders).is_meta and positions_of(ids, borders).shape == ids.shape
    assert take(torch.arange(12)[None], ids, 0).is_meta
    rows = Rows(0, ((12,),), (), index=torch.arange(12)[None])
    assert rows.to("meta", non_blocking=True).index.is_meta and rows.to("meta").documents == rows.documents
    assert Rows(0, ((12,),), ()).to("meta") == Rows(0, ((12,),), ())


def test_digests():
    """Processors of different CPUs round pictures in different ways; other values must be the same."""
    from longspan._rows import _digest_of

    ones = torch.ones(4, 6)
    given = dict(pixel_values=ones, weights=ones, image_grid_thw=torch.ones(1, 3, dtype=torch.int64))
    for name, changed, is_same in (("pixel_values", ones * (1 + 2**-23), True), ("pixel_values", ones[:2], False),
                                   ("weights", ones * (1 + 2**-23), False), ("image_grid_thw", torch.zeros(1, 3).long(), False)):
        differing = [a[0] for a, b in zip(_digest_of(given), _digest_of(given | {name: changed}), strict=True) if a != b]
        assert differing == ([] if is_same else [name])


def test_labels_stay_in_documents():
    """The first token of a document is not predicted from the document before it, also if it has a label."""
    ids = torch.arange(1, 13)[None]
    for borders in (dict(position_ids=torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])),
                    dict(cu_seq_lens_q=torch.tensor([0, 5, 8, 12], dtype=torch.int32), max_length_q=5)):
        _, loader = parallel(small_model("llama"), [dict(input_ids=ids, labels=ids) | borders])
        cut = next(iter(loader))
        assert cut["shift_labels"].tolist() == [[2, 3, 4, 5, -100, 7, 8, -100, 10, 11, 12, -100]]
        assert cut["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]]
        assert cut["longspan_rows"].documents == ((5, 3, 4),)


def test_forwards():
    batch = uneven_batches(1)[0]
    model, loader = parallel(small_model("llama"), [batch])
    cut = next(iter(loader))
    refused("got whole rows", model, **batch)
    refused("got use_cache", model, **cut, use_cache=True)
    refused("got logits_to_keep", model, **cut, logits_to_keep=1)
    for label in (-1, 96):
        changed = batch | dict(labels=batch["labels"].masked_fill(torch.arange(41) == 5, label))
        refused(f"labels of the batch are from {min(label, 0)} to" if label < 0 else "to 96, and must be from 0 to 95", model,
                **next(iter(longspan.parallelize_loader(model, [changed]))))
    refused("got output_attentions", model, **cut, output_attentions=True)
    refused("got attention_mask", model, **cut, attention_mask=batch["attention_mask"])
    refused("no shift_labels", model, **{key: cut[key] for key in cut if key != "shift_labels"})
    refused("arguments window_of_glass, which", model, **cut, window_of_glass=3)
    for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"):
        refused(f"got {name}, which", model, **cut, **{name: torch.tensor([0, 41])})
    inner = model.forward

    def own_forward(labels=None, shift_labels=None, **named):  # as Liger's: the loss is no call of loss_function
        output = inner(**named)
        output.loss = None if labels is None else torch.nn.functional.cross_entropy(output.logits[0], shift_labels[0])
        return output

    model.forward = own_forward
    refused("LlamaForCausalLM has computed its loss without its loss_function", model, **cut)
    assert model(**{key: cut[key] for key in cut if "labels" not in key}).loss is None
    model.forward = inner
    model.model.layers[0].self_attn.attention_dropout = 0.5
    refused("dropout of attention is 0.5", model.train(), **cut)
    weight = model.lm_head._parameters.pop("weight")
    model.lm_head.__dict__["weight"] = weight.detach()
    refused("has lost parameters", model, **cut)
    del model.lm_head.__dict__["weight"]
    model.lm_head.weight = weight
    with longspan.whole_rows(model.eval()), torch.no_grad():
        with longspan.whole_rows(model):
            pass
        whole = model(**batch).logits
    torch.testing.assert_close(whole[0], model(**cut).logits[0])


def test_no_process_group(monkeypatch):
    """torch.distributed.group.WORLD is None before init_process_group()."""
    q, world = torch.ones(4, 2, 8), torch.distributed.group.WORLD
    assert world is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("group is None, and this process is one of 2", longspan.attention, q, q, q, group=world, mode="zigzag-ring")
    refused("group is None, and this process is one of 2", longspan.gather_seq_scatter_heads, q[None], 1, 2, group=world)
    longspan.set_ulysses_sequence_parallel_group(None)


def test_takeover_without_rows():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, _ = parallel(small_model("llama"), takeover="sdpa")
    layer, q, k, v = model.model.layers[0].self_attn, *(torch.randn(1, heads, 4, 8) for heads in (6, 2, 2))
    refused("attention has no longspan_rows", ALL_ATTENTION_FUNCTIONS["sdpa"], layer, q, k, v, None, scaling=1.0)
    with longspan.whole_rows(model):
        out = ALL_ATTENTION_FUNCTIONS["sdpa"](layer, q, k, v, None, scaling=1.0)[0]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=True)
    torch.testing.assert_close(out, expected.transpose(1, 2))


def test_masks():
    """transformers' makers of masks: attention needs none for documents and windows, and serves no other."""
    from transformers import masking_utils

    model, _ = parallel(small_model("mistral"))
    model.config.attention_chunk_size = 4
    given = dict(config=model.config, inputs_embeds=torch.zeros(1, 6, 4), attention_mask=None)
    packed = given | dict(past_key_values=None, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
    for served in (masking_utils.create_causal_mask, masking_utils.create_sliding_window_causal_mask):
        assert served(**packed) is None
        refused("parts or_masks", served, **packed, or_mask_function=lambda b, h, q, kv: kv >= 0)
        refused("parts blockwise_overlay", served, **packed, block_sequence_ids=torch.zeros(1, 6, dtype=torch.int64))
        refused("attention_mask [1, 6] reached the model", served,
                **packed | dict(attention_mask=torch.tensor([[True] * 5 + [False]])))
    refused("parts chunked_overlay", masking_utils.create_chunked_causal_mask, **packed)
    refused("parts bidirectional_mask_function", masking_utils.create_bidirectional_mask, **given)
    refused("arguments words", masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["longspan"],
            mask_function=masking_utils.causal_mask_function, words=1)


def mistakes(rank):
    import torch.distributed as dist

    texts = []

    def failure(function):
        try:
            function()
        except longspan.UsageError as error:
            texts.append(str(error))
        else:
            texts.append("")

    failure(lambda: longspan.parallelize(small_model("llama"), sequence_parallel_size=3))
    failure(lambda: longspan.parallelize(small_model("llama"), sequence_parallel_size=2, num_tokens=100 + rank))
    failure(lambda: longspan.parallelize(small_model("llama", num_attention_heads=3, num_key_value_heads=1), mode="ulysses",
                                         sequence_parallel_size=2))
    other = uneven_batches(1)[0]
    for key, change in (("input_ids", rank), ("labels", -3 * rank), ("weights", 0.5 * rank), ("labels", 96)):
        batch = other | dict(weights=torch.ones(2, 41))
        batch[key] = torch.where(other["labels"] < 0, batch[key], batch[key] + change)
        model, loader = longspan.parallelize(small_model("llama"), [batch], sequence_parallel_size=2, token_keys=dict(weights=0))
        failure(lambda: model(**next(iter(loader))))
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    model, loader = longspan.parallelize(small_model("llama"), uneven_batches(1), sequence_parallel_size=2)
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=alone)
    failure(lambda: ddp(**next(iter(loader))))
    failure(lambda: longspan.parallelize(ddp, sequence_parallel_size=2))
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    sharded = small_model("llama")
    for layer in sharded.model.layers:
        fully_shard(layer)
    failure(lambda: longspan.parallelize(sharded, sequence_parallel_size=2))
    flat = FullyShardedDataParallel(small_model("llama"), device_id=torch.device("cpu"))
    failure(lambda: longspan.parallelize(flat, sequence_parallel_size=2))
    failure(lambda: longspan.parallelize(small_model("llama", attention_dropout=0.1), sequence_parallel_size=2))
    failure(lambda: longspan.parallelize(small_model("gemma3_text", use_bidirectional_attention=True), sequence_parallel_size=2))
    model, loader = longspan.parallelize(small_model("llama"), uneven_batches(1), sequence_parallel_size=2)
    for layer in model.model.layers:
        fully_shard(layer)
    failure(lambda: model(**next(iter(loader))))
    model, loader = longspan.parallelize(small_model("llama"), uneven_batches(1), sequence_parallel_size=2)
    batch = next(iter(loader))
    failure(lambda: model(**batch, attention_mask=torch.ones(2, 1, 41, 41)))
    model.train().model.layers[0].self_attn.attention_dropout = 0.5
    failure(lambda: model(**batch))
    failure(lambda: longspan.parallelize(model, sequence_parallel_size=2))
    with tempfile.TemporaryDirectory() as folder:
        trainer = longspan.parallelize_trainer(trainer_of(folder, small_model("llama")), sequence_parallel_size=2)
        failure(lambda: longspan.parallelize_trainer(trainer, sequence_parallel_size=2))
    failure(lambda: longspan.parallelize(small_model("llama"), sequence_parallel_size=2, takeover=["eager", "sdpa"][rank]))
    group = dist.group.WORLD
    failure(lambda: longspan.share(longspan.Heads(2, 2, 8, 8), group=group, mode="ulysses", device="cuda"))
    failure(lambda: longspan.share(longspan.Heads(2, 2, 8, 8), group=group, device="cuda"))
    return texts


def test_every_rank():
    expected = ["sequence_parallel_size=3, and there are 2 ranks: choose a divisor of 2", "all ranks must call it alike",
                "3", *[f"have different batches, in {key}:" for key in ("input_ids", "labels", "weights")],
                "and must be from 0 to 95", "averages gradients over 1 ranks, and must do so over all 2",
                "the model is a DistributedDataParallel", "parameters are sharded", "the model is a FullyShardedDataParallel",
                "attention_dropout is 0.1", "not causal",
                "fully_shard has no part of model.embed_tokens.weight", "got attention_mask",
                "dropout of attention is 0.5", "was called for this model before", "was called for this model before",
                "all ranks must call it alike", "has gloo for these devices, not nccl", "cpu:gloo,cuda:nccl"]
    for texts in run_forks(2, mistakes):
        assert [text for text, part in zip(texts, expected, strict=True) if part not in text] == []


def test_timeout_of_average_gradients():
    import longspan

    with pytest.raises(longspan.UsageError, match="timeout is 0, and must be"):
        longspan.average_gradients([], timeout=0)
