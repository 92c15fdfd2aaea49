"""longspan.parallelize refuses by name everything that it cannot serve, on every rank."""

import re

import pytest
import torch
from forks import run_forks
from hf_models import small_model, uneven_batches

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
    model, _ = parallel(small_model("llama"))
    refused("was called for this model before", parallel, model)
    refused("fused_loss=True is not possible for gemma2", parallel, small_model("gemma2"), fused_loss=True)
    refused("final_logit_softcapping=3.0", parallel, small_model("gemma3_text", final_logit_softcapping=3.0), fused_loss=True)
    biased = small_model("llama")
    biased.lm_head = torch.nn.Linear(48, 96)
    refused("without bias", parallel, biased, fused_loss=True)
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
    refused("got output_attentions", model, **cut, output_attentions=True)
    refused("got attention_mask", model, **cut, attention_mask=batch["attention_mask"])
    refused("no shift_labels", model, **{key: cut[key] for key in cut if key != "shift_labels"})
    refused("arguments window_of_glass, which", model, **cut, window_of_glass=3)
    model.model.layers[0].self_attn.attention_dropout = 0.5
    refused("dropout of attention is 0.5", model.train(), **cut)
    weight = model.lm_head._parameters.pop("weight")
    model.lm_head.__dict__["weight"] = weight.detach()
    refused("has lost parameters", model, **cut)
    del model.lm_head.__dict__["weight"]
    model.lm_head.weight = weight
    with longspan.whole_rows(model.eval()), torch.no_grad():
        whole = model(**batch).logits
    torch.testing.assert_close(whole[0], model(**cut).logits[0])


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
    other["input_ids"] = other["input_ids"] + rank
    model, loader = longspan.parallelize(small_model("llama"), [other], sequence_parallel_size=2)
    failure(lambda: model(**next(iter(loader))))
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    model, loader = longspan.parallelize(small_model("llama"), uneven_batches(1), sequence_parallel_size=2)
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=alone)
    failure(lambda: ddp(**next(iter(loader))))
    failure(lambda: longspan.parallelize(ddp, sequence_parallel_size=2))
    return texts


def test_every_rank():
    expected = ["sequence_parallel_size=3, and there are 2 ranks: choose a divisor of 2", "all ranks must call it alike",
                "3", "have different batches", "averages gradients over 1 ranks, and must do so over all 2",
                "the model is a DistributedDataParallel"]
    for texts in run_forks(2, mistakes):
        assert [text for text, part in zip(texts, expected, strict=True) if part not in text] == []
