"""Training with latent attention (DeepSeek-V3) against transformers' Trainer and PEFT; the same on any number of ranks, where
rings pass latents on."""

import json

import pytest
import torch
from conftest import relative_difference, run_to_end, settings_of, write_dataset, write_model
from test_lora import distance, logits_of, with_adapter, write_adapter
from pairs import load
from shared import made_once
from test_models import make_row, probe, reference_logits, relative_error
from test_trainer import WEIGHTS, our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE
from transformers import AutoModelForCausalLM

NUM_STEPS = 5
SHARED = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-3,
              adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, weight_decay=0.1)
ATTENTION = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]


@pytest.fixture(scope="module")
def model_folder(place):
    return str(made_once(place / "deepseek_v3", lambda folder: write_model(folder, "deepseek_v3")))


@pytest.fixture(scope="module")
def short_rows(place):
    """Short, so that few choices of experts are close."""
    return str(made_once(place / "for_latents", lambda folder: write_dataset(folder, shortest=4, longest=20)))


def run(settings, num_ranks=1):
    return run_to_end(settings, num_ranks)


def eager(model):
    """Grouped products know no fp64."""
    model.set_experts_implementation("eager")
    return model


def assert_same_training(finished, theirs):
    losses = finished.logged("loss")
    assert len(set(losses)) == NUM_STEPS
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in theirs]) < TOLERANCE, key


def test_sft(model_folder, short_rows, tmp_path):
    """transformers loads what was saved, which computes the same logits there and here."""
    settings = settings_of(model_folder, short_rows, tmp_path / "ours", disable_shuffling=True) | SHARED
    finished = run(settings)
    history, model = transformers_run(model_folder, our_rows(settings, tmp_path), tmp_path, eager, **SHARED)
    assert_same_training(finished, history)
    saved, info = AutoModelForCausalLM.from_pretrained(finished.output_dir, dtype=torch.float32,
                                                       output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    start = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).state_dict()
    assert distance(saved.state_dict(), model.state_dict()) < WEIGHTS * distance(start, model.state_dict())
    documents = [17, 1, 23]
    tokens, labels = make_row(saved.config.vocab_size, documents)
    ours = probe(finished.output_dir, tmp_path, tokens, labels, documents, ["logits"])["logits"]
    with torch.no_grad():
        assert relative_error(ours, reference_logits(saved.eval(), tokens, documents)) < 1e-5


def test_lora(model_folder, short_rows, tmp_path):
    start = write_adapter(model_folder, tmp_path / "start", target_modules=ATTENTION, init_lora_weights=False)
    settings = settings_of(model_folder, short_rows, tmp_path / "ours", disable_shuffling=True) | SHARED
    rows = our_rows(settings, tmp_path)
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start, lora_target=",".join(ATTENTION))
    finished = run(settings)
    history, trained = transformers_run(model_folder, rows, tmp_path,
                                        lambda model: with_adapter(eager(model), start), **SHARED)
    assert_same_training(finished, history)
    ids = rows[0]["input_ids"]
    loaded = with_adapter(load(model_folder), finished.output_dir, is_trainable=False)
    expected, got, untrained = logits_of(trained, ids), logits_of(loaded, ids), logits_of(load(model_folder), ids)
    assert (got - expected).norm() < 1e-3 * (untrained - expected).norm()
    # With dropout keys and values travel, and what one process computes is what two do.
    dropout = settings | dict(lora_dropout=0.2, max_steps=2)
    alone = run(dropout | dict(output_dir=str(tmp_path / "alone")))
    two = run(dropout | dict(output_dir=str(tmp_path / "two"), sequence_parallel_size=2,
                             sequence_parallel_mode="zigzag-ring"), 2)
    assert relative_difference(two.logged("loss"), alone.logged("loss")) < TOLERANCE
    assert_bytes_of_formula(two)


def assert_bytes_of_formula(finished):
    report = json.loads((finished.output_dir / "sequence_parallel.json").read_text())["bytes_per_layer"]
    for direction in ("forward", "backward"):
        assert 0 < report[direction]["measured"] == report[direction]["formula"], direction
    return report


WAYS = {
    "ulysses of 2, ZeRO 3": (2, dict(sequence_parallel_mode="ulysses", zero_stage=3, offload_activations=True)),
    "zigzag ring of 3": (3, dict(sequence_parallel_mode="zigzag-ring")),
    "ring of 2, no checkpointing": (2, dict(sequence_parallel_mode="ring", disable_gradient_checkpointing=True)),
    "llama3 of 3": (3, dict(sequence_parallel_mode="llama3")),
    "loongtrain of 4, no checkpointing": (4, dict(sequence_parallel_mode="loongtrain", sequence_parallel_ulysses_degree=2,
                                                  disable_gradient_checkpointing=True)),
    "usp of 4, ZeRO 2": (4, dict(sequence_parallel_mode="usp", sequence_parallel_ulysses_degree=2,
                                 sequence_parallel_ring_degree=2, zero_stage=2)),
}


@pytest.fixture(scope="module")
def one_process(model_folder, short_rows, known_run):
    return known_run(settings_of(model_folder, short_rows, "", disable_shuffling=True) | SHARED | dict(max_steps=10))


@pytest.mark.parametrize("way", WAYS)
def test_ranks(way, one_process, model_folder, short_rows, tmp_path):
    num_ranks, keys = WAYS[way]
    settings = settings_of(model_folder, short_rows, tmp_path / "many", disable_shuffling=True) | SHARED
    finished = run(settings | keys | dict(max_steps=10, sequence_parallel_size=num_ranks), num_ranks)
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), one_process.logged(key)) < TOLERANCE, key
    assert_bytes_of_formula(finished)


def test_bytes_in_bf16(model_folder, short_rows, tmp_path):
    """Latents travel in bf16 and their gradients in fp32: 20 + 8 numbers a token, on a ring of two, of two rows a step."""
    settings = settings_of(model_folder, short_rows, tmp_path / "ring", bf16=True, sequence_parallel_size=2,
                           sequence_parallel_mode="ring") | SHARED | dict(max_steps=1)
    finished = run(settings, 2)
    report = assert_bytes_of_formula(finished)
    tokens = json.loads((finished.output_dir / "sequence_parallel.json").read_text())["padded_tokens"]
    assert report["forward"]["measured"] == tokens * 28 * 2
    assert report["backward"]["measured"] == tokens * 28 * (2 + 4)
