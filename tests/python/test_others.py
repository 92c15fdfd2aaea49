"""Cases of other projects' tests: ring-flash-attention's borders of documents, and transformers' registers of attention."""

import json

import pytest
import torch
from forks import run_forks
from hf_models import small_model, uneven_batches
from hf_trainer import examples, padded
from others import BORDERS, attention_errors, tolerance
from test_hf_pictures import batches as picture_batches
from test_hf_pictures import small_model as picture_model

import longspan


@pytest.mark.parametrize("size, head_dim", [(2, 128), (4, 8)])
def test_borders(size, head_dim):
    """ring-flash-attention: borders of documents inside of ranks' parts. tests/long/every_border.py has its own lengths."""
    cases = {name: BORDERS[name] for name in ("ring / 8", "zigzag / 8", "prepared")}
    for found in run_forks(size, attention_errors, cases, head_dim):
        for (name, mode), errors in found.items():
            assert max(errors) < tolerance(cases[name]), (name, mode, errors)


def parallel(model, batches, **options):
    model, loader = longspan.parallelize(model, batches, sequence_parallel_size=1, **options)
    return model, list(loader)


def loss_of(model, batch):
    return model(**batch).loss.item()


def test_registered(monkeypatch):
    """Each layer calls the registered function once, without a mask, whatever window it has."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    batches = uneven_batches(1)
    model, cut = parallel(small_model("gemma3_text"), batches)
    assert "longspan" in ALL_ATTENTION_FUNCTIONS.valid_keys() and "longspan" in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()
    seen = []
    registered = ALL_ATTENTION_FUNCTIONS["longspan"]

    def spy(module, query, key, value, attention_mask, **named):
        seen.append((module.layer_idx, attention_mask, named["sliding_window"]))
        return registered(module, query, key, value, attention_mask, **named)

    monkeypatch.setitem(AttentionInterface._global_mapping, "longspan", spy)
    assert loss_of(model, cut[0]) == pytest.approx(loss_of(small_model("gemma3_text"), batches[0]), abs=1e-5)
    assert seen == [(0, None, 9), (1, None, None)]


@pytest.mark.parametrize("takeover", [None, "sdpa"])
def test_switch(takeover):
    """An attention that knows no shared rows is refused, an unknown name changes nothing, and the way back is open."""
    batches = uneven_batches(1)
    model, cut = parallel(small_model("llama"), batches, takeover=takeover)
    expected = loss_of(model, cut[0])
    name = takeover or "longspan"
    model.set_attn_implementation("eager")
    with pytest.raises(longspan.UsageError, match=f"'eager'.*set_attn_implementation\\('{name}'\\)"):
        model(**cut[0])
    with longspan.whole_rows(model):
        assert model.config._attn_implementation == "sdpa"
        assert loss_of(model, batches[0]) == pytest.approx(expected, abs=1e-5)
    with longspan.whole_rows(model, "eager"):
        assert loss_of(model, batches[0]) == pytest.approx(expected, abs=1e-5)
    model.set_attn_implementation(name)
    with pytest.raises(ValueError, match='`attn_implementation="foo"` is not supported'):
        model.set_attn_implementation("foo")
    assert model.config._attn_implementation == name and loss_of(model, cut[0]) == expected
    for argument, named in ((dict(is_causal=False), "only causal attention"), (dict(output_attentions=True), "output_attentions")):
        with pytest.raises(longspan.UsageError, match=named):
            model(**cut[0], **argument)


@pytest.mark.parametrize("takeover", [None, "sdpa"])
def test_parts_of_a_composite(takeover):
    """Parts have attention of their own, which names by sub-config change."""
    batches = picture_batches()
    expected = loss_of(picture_model(), batches[0])
    model, cut = parallel(picture_model(), batches, takeover=takeover)
    name = takeover or "longspan"

    def check(of_vision):
        assert model.config.text_config._attn_implementation == name
        assert model.config.vision_config._attn_implementation == of_vision
        assert loss_of(model, cut[0]) == pytest.approx(expected, abs=1e-5)

    check("sdpa")
    model.set_attn_implementation({"vision_config": "eager"})
    check("eager")
    model.set_attn_implementation("longspan")
    with pytest.raises(longspan.UsageError, match="VisionAttention"):  # a tower is not causal
        model(**cut[0])
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    with pytest.raises(longspan.UsageError, match=f"'eager'.*'text_config': '{name}'"):
        model(**cut[0])
    model.set_attn_implementation({"text_config": name})
    check("sdpa")


def test_saved(tmp_path):
    """The name stays out of saved folders. A model that was not parallelized refuses to run under the name."""
    batches = uneven_batches(1)
    model, cut = parallel(small_model("llama"), batches)
    model.save_pretrained(tmp_path)
    assert "longspan" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    again = type(model).from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"
    assert loss_of(again, batches[0]) == pytest.approx(loss_of(model, cut[0]), abs=1e-5)
    named = type(model).from_pretrained(tmp_path, attn_implementation="longspan")
    with pytest.raises(longspan.UsageError, match="parallelize"):
        named(input_ids=batches[0]["input_ids"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits(dtype, side):
    """The logits of tokens are those of sdpa, with padding at either side of a row."""
    batch = uneven_batches(1)[0]
    batch = {key: value.flip(1) if side == "left" else value for key, value in batch.items()}
    if side == "none":
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    mask = batch["attention_mask"].bool()
    expected = small_model("llama").to(dtype)(**batch).logits[mask]
    model, cut = parallel(small_model("llama").to(dtype), [batch])
    is_token = torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True)  # cut rows begin with their first token
    # Logits below 1 after two layers, each of which rounds a few times.
    assert (model(**cut[0]).logits[is_token] - expected).abs().max() < 16 * torch.finfo(dtype).eps


def test_padding_free():
    """A row without padding has the logits of padded rows, if positions or cu_seq_lens state its documents."""
    from transformers import DataCollatorWithFlattening

    rows = examples(4)
    batch = padded(rows)
    expected = small_model("llama")(**batch).logits[batch["attention_mask"].bool()]
    for with_bounds in (False, True):
        flat = DataCollatorWithFlattening(return_flash_attn_kwargs=with_bounds)(rows)
        if with_bounds:
            del flat["position_ids"]
        model, cut = parallel(small_model("llama"), [flat])
        logits = model(**cut[0]).logits[0]
        assert logits.shape == expected.shape and (logits - expected).abs().max() < 1e-5
