"""rope_scaling: positions stretched to longer rows as LLaMA-Factory's key does it, and saved so that
transformers computes the same."""

import json
import math
import subprocess

import pytest
import torch
import transformers
from conftest import PROGRAM, Running, relative_difference, settings_of, write_dataset, write_model
from model_configs import longrope
from test_models import probe, relative_error
from test_trainer import our_rows
from tolerance import TOLERANCE

POSITIONS, ROW = 64, 200


def as_llama_factory_sets_it(kind, original, row_length):
    """Its configure_rope, where cutoff_len is the row's length: the keys of rope_scaling, the positions."""
    factor = float(math.ceil(row_length / original))
    scaling = {"rope_type": kind, "factor": factor}
    if kind != "linear":
        scaling["original_max_position_embeddings"] = original
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return scaling, original * factor


def older(folder):
    """config.json as transformers 4 writes it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    path.write_text(json.dumps(config))


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long") / "data"
    write_dataset(folder, num_rows=4, shortest=80, longest=90)
    return folder


def run(model, data, output, num_ranks=1, **keys):
    settings = settings_of(model, data, output, cutoff_len=ROW, max_steps=1, gradient_accumulation_steps=1)
    finished = Running(settings | dict(disable_shuffling=True) | keys, num_ranks).wait()
    return settings | keys, finished


@pytest.mark.parametrize("writer", ["transformers-5", "transformers-4"])
@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_transformers_computes_the_same(kind, writer, long_rows, tmp_path):
    model = write_model(tmp_path / "model", "qwen2", max_position_embeddings=POSITIONS, rope_theta=5e4)
    if writer == "transformers-4":
        older(model)
    settings, finished = run(model, long_rows, tmp_path / "run", rope_scaling=kind)
    assert finished.status == 0, finished.text
    scaling, positions = as_llama_factory_sets_it(kind, POSITIONS, ROW)
    assert f"rope_scaling: {kind} with factor 4: 64 positions become 256." in finished.text
    saved = json.loads((finished.output_dir / "config.json").read_text())
    assert saved["max_position_embeddings"] == positions
    rope = saved["rope_parameters" if writer == "transformers-5" else "rope_scaling"]
    assert {key: rope[key] for key in scaling} == scaling
    config = transformers.AutoConfig.from_pretrained(finished.output_dir)
    assert config.rope_parameters["rope_theta"] == 5e4
    assert {key: config.rope_parameters[key] for key in scaling} == scaling

    # The first loss is that of the model before its first step, with the saved positions.
    row = our_rows(settings, tmp_path)[0]
    ids, labels = torch.tensor([row["input_ids"]]), torch.tensor([row["labels"]])
    assert ids.shape[1] > POSITIONS
    before = transformers.AutoModelForCausalLM.from_pretrained(model, config=config, dtype=torch.float32)
    loss = before(input_ids=ids, labels=labels).loss.item()
    assert finished.logged("loss")[0] == pytest.approx(loss, rel=1e-6)
    unscaled = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    assert finished.logged("loss")[0] != pytest.approx(unscaled(input_ids=ids, labels=labels).loss.item(), rel=1e-5)
    # And the saved folder computes the same in both.
    after = transformers.AutoModelForCausalLM.from_pretrained(finished.output_dir, dtype=torch.float32)
    ours = probe(finished.output_dir, tmp_path, ids[0], labels[0], [ids.shape[1]], ["logits"])["logits"]
    assert relative_error(ours, after(input_ids=ids).logits[0]) < 1e-5


def test_a_model_that_is_stretched_already(long_rows, tmp_path):
    """The factor is counted from what the model was made with, as in LLaMA-Factory; a reference model is stretched alike."""
    model = write_model(tmp_path / "model", "llama")  # llama3, factor 8, made with 64 positions
    _, finished = run(model, long_rows, tmp_path / "run", rope_scaling="yarn")
    assert finished.status == 0, finished.text
    assert "with factor 4 in place of its own (llama3, factor 8): 64 positions become 256" in finished.text
    config = transformers.AutoConfig.from_pretrained(finished.output_dir)
    assert (config.rope_parameters["rope_type"], config.max_position_embeddings) == ("yarn", 256)


def test_an_adapter_is_exported_with_its_positions(long_rows, tmp_path):
    model = write_model(tmp_path / "model", "qwen2", max_position_embeddings=POSITIONS)
    _, finished = run(model, long_rows, tmp_path / "run", rope_scaling="yarn", finetuning_type="lora")
    assert finished.status == 0, finished.text
    assert "keeps the positions in longspan_adapter.json" in finished.text
    keys = dict(model_name_or_path=str(model), adapter_name_or_path=str(finished.output_dir), cutoff_len=ROW)
    keys |= dict(export_dir=str(tmp_path / "merged"), rope_scaling="yarn")
    (tmp_path / "export.json").write_text(json.dumps(keys))
    subprocess.run([PROGRAM, "export", tmp_path / "export.json"], check=True)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "merged")
    assert (config.rope_parameters["rope_type"], config.rope_parameters["factor"]) == ("yarn", 4.0)
    assert config.max_position_embeddings == 256


def greedy(folder, *keys):
    asked = subprocess.run([PROGRAM, "chat", folder, "temperature=0", "max_new_tokens=12", "template=chatml", "infer_dtype=fp32",
                            *keys], input="random numbers " * 20, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


def test_an_adapter_keeps_its_positions(long_rows, tmp_path):
    """chat and export compute with the positions of training, by the adapter's folder alone; PEFT loads it without a warning."""
    import warnings

    from peft import PeftModel

    model = write_model(tmp_path / "model", "qwen2", max_position_embeddings=POSITIONS, initializer_range=0.1)
    _, finished = run(model, long_rows, tmp_path / "run", rope_scaling="yarn", finetuning_type="lora")
    adapter = finished.output_dir
    saved = json.loads((adapter / "longspan_adapter.json").read_text())
    assert saved["max_position_embeddings"] == 256 and saved["rope_parameters"]["factor"] == 4.0
    keys = dict(model_name_or_path=str(model), adapter_name_or_path=str(adapter), export_dir=str(tmp_path / "merged"))
    (tmp_path / "export.json").write_text(json.dumps(keys))
    subprocess.run([PROGRAM, "export", tmp_path / "export.json"], check=True)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "merged")
    assert (config.rope_parameters["rope_type"], config.max_position_embeddings) == ("yarn", 256)
    assert greedy(adapter) == greedy(tmp_path / "merged") == greedy(model, f"adapter_name_or_path={adapter}")
    other = subprocess.run([PROGRAM, "export", tmp_path / "export.json", "rope_scaling=linear", f"cutoff_len={ROW}",
                            f"export_dir={tmp_path / 'other'}"], capture_output=True, text=True)
    assert other.returncode == 1 and "is not what the adapter was trained with: yarn with factor 4" in other.stderr
    # Training that goes on from it has them too, and keeps them.
    _, again = run(model, long_rows, tmp_path / "again", finetuning_type="lora", adapter_name_or_path=str(adapter))
    assert again.status == 0, again.text
    assert json.loads((again.output_dir / "longspan_adapter.json").read_text()) == saved
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(model), adapter)
    # A run without them into the same folder leaves no such file.
    _, plain = run(model, long_rows, tmp_path / "run", finetuning_type="lora", overwrite_output_dir=True)
    assert plain.status == 0, plain.text
    assert not (adapter / "longspan_adapter.json").exists()


def longrope_model(folder, original, **keys):
    return write_model(folder, "phi3", original_max_position_embeddings=original, rope_parameters=longrope(), **keys)


def test_longrope_goes_by_the_longest_document_of_a_row(tmp_path):
    """As transformers, which is given all positions of a packed row at once."""
    folder = longrope_model(tmp_path / "model", 32)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    logits = {}
    for documents in ([20, 31], [20, 33], [20, 31, 32]):
        tokens = torch.randint(model.config.vocab_size, (sum(documents),), generator=generator.manual_seed(5))
        positions = torch.cat([torch.arange(length) for length in documents])
        with torch.no_grad():
            theirs = model(input_ids=tokens[None], position_ids=positions[None], use_cache=False).logits[0]
        ours = probe(folder, tmp_path, tokens, torch.full_like(tokens, -100), documents, ["logits"])["logits"]
        assert relative_error(ours, theirs) < 1e-5, documents
        logits[tuple(documents)] = ours[:20]
    # The document of 20 tokens is rotated otherwise beside one of 33.
    assert relative_error(logits[20, 33], logits[20, 31]) > 1e-3
    assert relative_error(logits[20, 31, 32], logits[20, 31]) < 1e-5


@pytest.mark.parametrize("size, mode", [(2, "zigzag-ring"), (3, "dummy-head-ulysses")])
def test_longrope_does_not_depend_on_shards(size, mode, long_rows, tmp_path):
    """One rank holds no position that the model was not made with."""
    model = longrope_model(tmp_path / "model", 150)
    _, whole = run(model, long_rows, tmp_path / "whole", max_steps=4)
    _, shared = run(model, long_rows, tmp_path / "shared", max_steps=4, sequence_parallel_size=size,
                    sequence_parallel_mode=mode, num_ranks=size)
    for finished in (whole, shared):
        assert finished.status == 0, finished.text
    for key in ("loss", "grad_norm"):
        assert len(set(whole.logged(key))) == 4
        assert relative_difference(shared.logged(key), whole.logged(key)) < TOLERANCE, key


def test_phi3_knows_longrope_alone(long_rows, tmp_path):
    model = longrope_model(tmp_path / "model", POSITIONS)
    _, finished = run(model, long_rows, tmp_path / "run", rope_scaling="yarn")
    assert finished.status == 1
    assert "rope_scaling: yarn: the model's positions cannot be stretched so" in finished.text


def test_rows_that_fit_change_nothing(long_rows, tmp_path):
    model = write_model(tmp_path / "model", "qwen2", max_position_embeddings=2048)
    _, plain = run(model, long_rows, tmp_path / "plain")
    _, asked = run(model, long_rows, tmp_path / "asked", rope_scaling="yarn")
    assert "rope_scaling: yarn changes nothing: cutoff_len 200 is no more than the 2048 positions" in asked.text
    assert "max_position_embeddings" not in plain.text
    assert asked.logged("loss") == plain.logged("loss")
    for name in ("config.json", "model.safetensors"):
        assert (plain.output_dir / name).read_bytes() == (asked.output_dir / name).read_bytes()


def test_rows_beyond_the_positions_are_warned_of(long_rows, tmp_path):
    model = write_model(tmp_path / "model", "qwen2", max_position_embeddings=POSITIONS)
    _, finished = run(model, long_rows, tmp_path / "run")
    warning = next(line for line in finished.text.splitlines() if "max_position_embeddings" in line)
    assert warning.startswith("warning: 4 of 4 rows are longer than the model's positions: the longest has 200 tokens")
    assert "max_position_embeddings in config.json is 64" in warning
    assert "rope_scaling: yarn" in warning and "cutoff_len: 64" in warning
    _, dynamic = run(model, long_rows, tmp_path / "dynamic", rope_scaling="dynamic")
    assert dynamic.status == 1 and "dynamic" in dynamic.text and "rope_scaling" in dynamic.text
