"""A head with numbers of its own where config.json says that it is the embedding: the model that transformers 5 loads, in
training, adapters, export and generation; and tensors of a model's files that nobody reads."""

import json
import shutil

import pytest
import torch
from conftest import relative_difference, run_to_end, settings_of, write_model
from safetensors.torch import load_file, save_file
from shared import made_once
from test_lora import distance, export, logits_of, with_adapter, write_adapter
from test_models import make_row, probe, reference_logits, relative_error
from test_trainer import WEIGHTS, our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE
from transformers import AutoModelForCausalLM

SHARED = dict(per_device_train_batch_size=2, gradient_accumulation_steps=1, learning_rate=1e-3, adam_epsilon=ADAM_EPSILON,
              max_steps=4, lr_scheduler_type="constant")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def change_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def with_head(folder, kind, differs=True):
    """Tied by its config, and with a head in its file: one of its own, or the embedding again."""
    write_model(folder, kind, tie_word_embeddings=True)

    def add(tensors):
        assert HEAD not in tensors
        head = tensors[EMBEDDING].clone()
        if differs:
            head += 0.05 * torch.randn(head.shape, generator=torch.Generator().manual_seed(5))
        tensors[HEAD] = head

    change_weights(folder, add)
    return folder


def theirs(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@pytest.fixture(scope="module")
def own_head(place):
    return str(made_once(place / "own_head", lambda folder: with_head(folder, "llama")))


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("differs", [True, False])
def test_logits(kind, differs, tmp_path):
    """And what is saved holds a head only where there is one, and says so."""
    folder = with_head(tmp_path / "model", kind, differs)
    model = theirs(folder)
    assert (model.lm_head.weight is not model.model.embed_tokens.weight) == differs
    documents = [17, 23]
    tokens, labels = make_row(300, documents)
    ours = probe(folder, tmp_path, tokens, labels, documents, ["logits"], save_to=str(tmp_path / "copy"))["logits"]
    with torch.no_grad():
        assert relative_error(ours, reference_logits(model, tokens, documents)) < 1e-5
    assert (HEAD in load_file(tmp_path / "copy" / "model.safetensors")) == differs
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["tie_word_embeddings"] != differs
    for name, value in theirs(tmp_path / "copy").state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_head_in_the_place_of_the_embedding(tmp_path):
    folder = write_model(tmp_path / "model", "llama", tie_word_embeddings=True)
    expected = theirs(folder).state_dict()[EMBEDDING]
    change_weights(folder, lambda tensors: tensors.update({HEAD: tensors.pop(EMBEDDING)}))
    tokens, labels = make_row(300, [23])
    ours = probe(folder, tmp_path, tokens, labels, [23], ["logits"])["logits"]
    model = theirs(folder)
    assert torch.equal(model.state_dict()[EMBEDDING], expected)
    with torch.no_grad():
        assert relative_error(ours, reference_logits(model, tokens, [23])) < 1e-5


def test_head_that_the_index_does_not_name(tmp_path):
    """transformers reads all that the index's files hold."""
    folder = with_head(tmp_path / "model", "llama")
    names = [name for name in load_file(folder / "model.safetensors") if name != HEAD]
    shard = "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(folder / shard)
    index = dict(metadata={}, weight_map=dict.fromkeys(names, shard))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    tokens, labels = make_row(300, [23])
    ours = probe(folder, tmp_path, tokens, labels, [23], ["logits"])["logits"]
    model = theirs(folder)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    with torch.no_grad():
        assert relative_error(ours, reference_logits(model, tokens, [23])) < 1e-5


def test_training(own_head, data, tmp_path):
    """As transformers trains it; with ZeRO 3; from a checkpoint; and as the model whose config.json says so."""
    settings = settings_of(own_head, data, tmp_path / "ours") | SHARED | dict(disable_shuffling=True, max_samples=8)
    finished = run_to_end(settings | dict(save_strategy="steps", save_steps=2))
    assert f"{own_head}: config.json says tie_word_embeddings: true, and lm_head.weight has other numbers" in finished.text
    history, model = transformers_run(own_head, our_rows(settings, tmp_path), tmp_path, **SHARED)
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in history]) < TOLERANCE, key
    saved, start = load_file(finished.output_dir / "model.safetensors"), load_file(f"{own_head}/model.safetensors")
    trained = model.state_dict()
    assert HEAD in trained and distance(saved, trained) < WEIGHTS * distance(start, trained)

    shutil.copytree(finished.output_dir / "checkpoint-2", tmp_path / "again" / "checkpoint-2")
    again = run_to_end(settings | dict(output_dir=str(tmp_path / "again"), resume_from_checkpoint=True))
    assert (again.output_dir / "model.safetensors").read_bytes() == (finished.output_dir / "model.safetensors").read_bytes()

    sharded = run_to_end(settings | dict(output_dir=str(tmp_path / "sharded"), zero_stage=3, per_device_train_batch_size=1), 2)
    assert relative_difference(sharded.logged("loss"), finished.logged("loss")) < TOLERANCE

    untied = tmp_path / "untied"
    shutil.copytree(own_head, untied)
    config = json.loads((untied / "config.json").read_text())
    (untied / "config.json").write_text(json.dumps(config | dict(tie_word_embeddings=False)))
    said = run_to_end(settings | dict(model_name_or_path=str(untied), output_dir=str(tmp_path / "said")))
    assert (said.output_dir / "model.safetensors").read_bytes() == (finished.output_dir / "model.safetensors").read_bytes()

    def account(run):
        return json.loads((run.output_dir / "memory.json").read_text())["account"]

    assert account(said) == account(finished)


def test_adapter(own_head, data, tmp_path):
    start = write_adapter(own_head, tmp_path / "start", target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    settings = settings_of(own_head, data, tmp_path / "ours", finetuning_type="lora", adapter_name_or_path=start)
    settings |= SHARED | dict(disable_shuffling=True, max_samples=8)
    finished = run_to_end(settings)
    history, model = transformers_run(own_head, our_rows(settings, tmp_path), tmp_path,
                                      prepare=lambda model: with_adapter(model, start), **SHARED)
    assert relative_difference(finished.logged("loss"), [entry["loss"] for entry in history]) < TOLERANCE
    export(dict(model_name_or_path=own_head, adapter_name_or_path=str(finished.output_dir)), tmp_path,
           export_dir=str(tmp_path / "merged"))
    ids = [5, 9, 200, 31]
    of_adapter = logits_of(with_adapter(theirs(own_head), str(finished.output_dir), is_trainable=False), ids)
    assert relative_error(logits_of(theirs(tmp_path / "merged"), ids), of_adapter) < 1e-5


def test_tensors_that_are_not_read_are_counted(data, tmp_path):
    folder = with_head(tmp_path / "model", "llama", differs=False)
    frequencies = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(4) for layer in range(2)}
    change_weights(folder, lambda tensors: tensors.update(frequencies))
    text = run_to_end(settings_of(folder, data, tmp_path / "run", max_steps=1)).text
    assert "2 tensors of the files are not read: rotary frequencies" in text
    assert "1 tensor of the files is not read: lm_head.weight has the embedding's numbers" in text
