"""The decoder against transformers' own models, on random checkpoints that transformers writes."""

import copy
import json
import subprocess

import pytest
import torch
from conftest import BUILD
from experts import by_file_name
from model_configs import CONFIGS
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

PROBE = BUILD / "model_probe"

# Their norms, but for those in linear attention, multiply by 1 + weight.
HYBRIDS = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")


def make_model(config, dtype=torch.float32):
    torch.manual_seed(7)
    # transformers has sinks in eager attention alone.
    attention = "eager" if config.model_type == "gpt_oss" else "sdpa"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    # Larger than at initialisation, so that norms, biases and attention matter.
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            from_zero = config.model_type in HYBRIDS and "linear_attn" not in name
            parameter.data.uniform_(-0.5, 0.5) if from_zero else parameter.data.uniform_(0.5, 1.5)
        elif name.endswith(("bias", "A_log", "conv1d.weight", "sinks")):
            parameter.data.normal_(std=0.3)
        elif name.endswith((".gate.weight", ".router.weight")):  # large, so that few choices are close
            parameter.data.normal_(std=0.5)
        else:
            parameter.data.normal_(std=0.08)
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            buffer.normal_(std=0.2)
    return model.to(dtype).eval()


def make_row(vocab_size, documents, seed=3):
    """Tokens, and labels shifted inside each document with about a third ignored."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (sum(documents),), generator=generator)
    labels = torch.full_like(tokens, -100)
    begin = 0
    for length in documents:
        labels[begin:begin + length - 1] = tokens[begin + 1:begin + length]
        begin += length
    labels[torch.rand(len(labels), generator=generator) < 0.35] = -100
    return tokens, labels


def probe(folder, tmp_path, tokens, labels, documents, outputs, **job):
    job |= dict(tokens=tokens.tolist(), labels=labels.tolist(), documents=documents,
                outputs=outputs)
    (tmp_path / "job.json").write_text(json.dumps(job))
    result = tmp_path / "result.safetensors"
    run = subprocess.run([PROBE, folder, tmp_path / "job.json", result], capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    return load_file(result)


def reference_logits(model, tokens, documents):
    """Each document on its own: what a packed row must not change."""
    return torch.cat([model(input_ids=part[None]).logits[0] for part in tokens.split(documents)])


def relative_error(actual, expected):
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


# Tensors of the files that are several parameters here.
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


def parts_of_fused(gradients, results):
    for name in list(gradients):
        for fused, parts in FUSED.items():
            if f".{fused}." in name and f"gradient.{name}" not in results:
                names = [name.replace(fused, part) for part in parts]
                rows = [len(results["gradient." + part]) for part in names]
                gradients |= zip(names, gradients.pop(name).split(rows))
    return gradients


def assert_gradients_equal(results, model, tolerance):
    gradients = parts_of_fused(by_file_name({name: p.grad for name, p in model.named_parameters()}), results)
    names = {name.removeprefix("gradient.") for name in results if name.startswith("gradient.")}
    assert names == set(gradients)
    for name, expected in gradients.items():
        actual = results["gradient." + name]
        if expected.norm() < 1e-6:  # key biases: softmax does not see them, the gradient is noise
            assert actual.norm() < 1e-5, name
        else:
            assert relative_error(actual, expected) < tolerance, name


# One document is a row of packed ones too, and takes another way through attention and recurrences: `make test` has one of
# the first model of each model_type.
FIRST = {config.model_type: name for name, config in reversed(CONFIGS.items())}.values()
ROWS = [pytest.param(name, documents, id=f"{name}-{kind}",
                     marks=[pytest.mark.rest] if kind == "one" and name not in FIRST else [])
        for name in CONFIGS for kind, documents in (("one", [97]), ("packed", [40, 1, 23, 66]))]


@pytest.mark.parametrize("name, documents", ROWS)
def test_logits_loss_and_gradients(name, documents, tmp_path):
    config = CONFIGS[name]
    model = make_model(config)
    model.save_pretrained(tmp_path / "model")
    tokens, labels = make_row(config.vocab_size, documents)
    logits = reference_logits(model, tokens, documents)
    loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100)
    loss.backward()
    for checkpointing in (False, True):
        results = probe(tmp_path / "model", tmp_path, tokens, labels, documents,
                        ["logits", "logprobs", "loss", "gradients"], checkpointing=checkpointing)
        assert relative_error(results["logits"], logits) < 1e-5
        logprobs = logits.log_softmax(-1)[labels != -100, labels[labels != -100]]
        assert relative_error(results["logprobs"], logprobs) < 1e-5
        assert abs(results["loss"].item() - loss.item()) < 1e-5 * loss.item()
        assert_gradients_equal(results, model, tolerance=1e-4)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name, padding", [("qwen2", 11), ("qwen3", 11), ("llama", 11), ("llama", -200)])
def test_padding_token_in_the_row(name, padding, tied, tmp_path):
    """The input embedding of pad_token_id has no gradient, though rows hold the token: SmolLM2's is <|im_end|>. A tied
    head's it has. transformers counts negative ones from the end, as torch does: of 211 tokens, -200 is the same."""
    config = copy.deepcopy(CONFIGS[name])
    config.pad_token_id, config.tie_word_embeddings = padding, tied
    model = make_model(config)
    model.save_pretrained(tmp_path / "model")
    tokens, labels = make_row(config.vocab_size, [97])
    tokens[::10] = labels[5::10] = 11
    torch.nn.functional.cross_entropy(reference_logits(model, tokens, [97]), labels).backward()
    for outputs in ["gradients"], ["logprob_gradients"]:
        results = probe(tmp_path / "model", tmp_path, tokens, labels, [97], outputs)
        assert_gradients_equal(results, model, tolerance=1e-4)
        row = results["gradient.model.embed_tokens.weight"][11]
        expected = model.model.embed_tokens.weight.grad[11]
        if tied:  # of one row alone: a whole matrix would hide it
            assert expected.norm() > 0 and relative_error(row, expected) < 1e-4
        else:
            assert expected.count_nonzero() == row.count_nonzero() == 0


def test_padding_token_outside_of_the_vocabulary(tmp_path):
    make_model(CONFIGS["llama"]).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(pad_token_id=211)))
    (tmp_path / "job.json").write_text("{}")
    run = subprocess.run([PROBE, tmp_path / "model", tmp_path / "job.json", tmp_path / "result"],
                         capture_output=True, text=True)
    assert run.returncode == 1
    assert "pad_token_id 211 is outside of the vocabulary of 211" in run.stderr
    with pytest.raises(AssertionError, match="Padding_idx must be within num_embeddings"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_logprob_gradients(tmp_path):
    config = CONFIGS["qwen2"]
    model = make_model(config)
    model.save_pretrained(tmp_path / "model")
    tokens, labels = make_row(config.vocab_size, [97])
    loss = torch.nn.functional.cross_entropy(reference_logits(model, tokens, [97]), labels)
    loss.backward()
    results = probe(tmp_path / "model", tmp_path, tokens, labels, [97], ["logprob_gradients"],
                    checkpointing=True)
    assert_gradients_equal(results, model, tolerance=1e-4)


def test_no_labels_give_zero_gradients(tmp_path):
    config = CONFIGS["llama-biases-head-dim"]
    make_model(config).save_pretrained(tmp_path / "model")
    tokens, labels = make_row(config.vocab_size, [30])
    for checkpointing in (False, True):
        results = probe(tmp_path / "model", tmp_path, tokens, torch.full_like(labels, -100), [30],
                        ["gradients"], checkpointing=checkpointing)
        gradients = {k: v for k, v in results.items() if k.startswith("gradient.")}
        assert len(gradients) == len(dict(make_model(config).named_parameters()))
        assert all(gradient.count_nonzero() == 0 for gradient in gradients.values())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name, shards", [("qwen2", False), ("qwen2", True), ("qwen3_5", True), ("gemma3", False),
                                          ("phi3", True), ("glm4", True)])
def test_round_trip(dtype, name, shards, tmp_path):
    config = CONFIGS[name]
    model = make_model(config, dtype)
    size = "100KB" if shards else "5GB"
    model.save_pretrained(tmp_path / "model", max_shard_size=size)
    assert (tmp_path / "model" / "model.safetensors.index.json").exists() == shards
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    tokens, labels = make_row(config.vocab_size, [50])
    results = probe(tmp_path / "model", tmp_path, tokens, labels, [50], ["logits"],
                    save_to=str(tmp_path / "copy"), save_dtype=str(dtype).removeprefix("torch."),
                    save_shard_bytes=100_000 if shards else 1 << 40)
    in_fp32 = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert relative_error(results["logits"], reference_logits(in_fp32, tokens, [50])) < 1e-5

    copy = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    assert copy.dtype == dtype
    assert (tmp_path / "copy" / "model.safetensors.index.json").exists() == shards
    assert (tmp_path / "copy" / "tokenizer_config.json").read_text() == "{}"
    assert (tmp_path / "copy" / "generation_config.json").exists()
    for (name, ours), theirs in zip(copy.named_parameters(), model.to(dtype).parameters()):
        assert torch.equal(ours, theirs), name


def total_error(actual, expected):
    """Relative, of all tensors together."""
    apart = sum((actual[name].double() - value.double()).square().sum() for name, value in expected.items())
    return (apart / sum(value.double().square().sum() for value in expected.values())).sqrt().item()


@pytest.mark.parametrize("name", ["qwen2", "qwen3_5", "qwen3_next"])
def test_bf16_compute_is_near_autocast(name, tmp_path):
    """fp32 weights, bf16 matrix products: as near to fp32 as torch.autocast is. Of hybrids all gradients are taken together:
    their recurrences have parameters of four numbers, whose few roundings tell nothing, and a rounding may send a token
    to another expert."""
    config = CONFIGS[name]
    model = make_model(config)
    model.save_pretrained(tmp_path / "model")
    tokens, labels = make_row(config.vocab_size, [97])
    exact_logits = reference_logits(model, tokens, [97])
    torch.nn.functional.cross_entropy(exact_logits, labels).backward()
    exact_gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        autocast = reference_logits(model, tokens, [97])
    torch.nn.functional.cross_entropy(autocast.float(), labels).backward()
    for checkpointing in (False, True):
        results = probe(tmp_path / "model", tmp_path, tokens, labels, [97],
                        ["logits", "gradients"], compute_dtype="bfloat16",
                        checkpointing=checkpointing)
        allowed = 1.5 * relative_error(autocast, exact_logits)
        assert 0 < relative_error(results["logits"], exact_logits) < allowed
        theirs = by_file_name({name: p.grad for name, p in model.named_parameters()})
        exact = by_file_name(exact_gradients)
        ours = {name: results["gradient." + name] for name in exact}
        assert all(gradient.dtype == torch.float32 for gradient in ours.values())
        if config.model_type in HYBRIDS:
            assert total_error(ours, exact) < 2 * total_error(theirs, exact)
            continue
        for name, gradient in exact.items():
            if name.endswith("k_proj.bias"):
                continue
            assert relative_error(ours[name], gradient) < 2 * relative_error(theirs[name], gradient), name


def test_config_of_transformers_4(tmp_path):
    """rope_theta and rope_scaling with the old name `type`, as transformers 4 wrote them."""
    config = CONFIGS["llama-linear"]
    model = make_model(config)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    keys = json.loads(path.read_text())
    keys.pop("rope_parameters")
    keys.pop("dtype", None)
    keys |= dict(rope_theta=10000.0, rope_scaling=dict(type="linear", factor=4.0),
                 torch_dtype="float32", pretraining_tp=1)
    keys.pop("head_dim", None)
    path.write_text(json.dumps(keys))
    tokens, labels = make_row(config.vocab_size, [60])
    results = probe(tmp_path / "model", tmp_path, tokens, labels, [60], ["logits"],
                    save_to=str(tmp_path / "copy"), save_dtype="bfloat16")
    assert relative_error(results["logits"], reference_logits(model, tokens, [60])) < 1e-5
    saved = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert saved == keys | dict(torch_dtype="bfloat16")


def test_positions_far_out(tmp_path):
    """Angles at thousands of tokens depend on the last bit of each frequency."""
    config = CONFIGS["llama3"]
    model = make_model(config)
    model.save_pretrained(tmp_path / "model")
    tokens, labels = make_row(config.vocab_size, [3000])
    with torch.no_grad():
        expected = reference_logits(model, tokens, [3000])
    results = probe(tmp_path / "model", tmp_path, tokens, labels, [3000], ["logits"])
    assert relative_error(results["logits"], expected) < 1e-5


def break_missing(tensors):
    tensors.pop("model.layers.1.mlp.up_proj.weight")


def break_shape(tensors):
    tensors["model.norm.weight"] = torch.ones(3)


def break_extra(tensors):
    tensors["model.layers.7.mlp.up_proj.weight"] = torch.ones(3)


def break_dtype(tensors):
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


@pytest.mark.parametrize("change, says", [
    (break_missing, "1 missing tensor (model.layers.1.mlp.up_proj.weight)"),
    (break_shape, "model.norm.weight has shape [3] but config.json asks for [64]"),
    (break_extra, "1 unexpected tensor (model.layers.7.mlp.up_proj.weight)"),
    (break_dtype, "quantized checkpoints cannot be trained"),
])
def test_weights_that_do_not_fit(change, says, tmp_path):
    make_model(CONFIGS["llama"]).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    (tmp_path / "job.json").write_text("{}")
    run = subprocess.run([PROBE, tmp_path / "model", tmp_path / "job.json", tmp_path / "result"],
                         capture_output=True, text=True)
    assert run.returncode == 1
    assert says in run.stderr
    assert not (tmp_path / "result").exists()
