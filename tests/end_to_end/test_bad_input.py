"""Mistakes in the configuration, the data and the layout of processes: one clear error, status 1 on
every rank, quickly, and nothing written."""

import json
import os
import subprocess
import time

import pytest
from conftest import PROGRAM, settings_of

SECONDS = 30  # 10, and what a loaded machine needs to start the processes


def run(settings, folder, *arguments, **environment):
    config = folder / "config.json"
    config.write_text(json.dumps(settings) if isinstance(settings, dict) else settings)
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    begin = time.time()
    ran = subprocess.run(
        [PROGRAM, "train", config, *arguments], capture_output=True, text=True,
        env=clean | environment, timeout=60,
    )
    return ran, time.time() - begin


def error_of(settings, folder, *arguments, **environment):
    ran, seconds = run(settings, folder, *arguments, **environment)
    assert ran.returncode == 1, ran.stderr
    assert seconds < SECONDS
    assert ran.stderr.count("error: ") == 1 and "Traceback" not in ran.stderr, ran.stderr
    assert not (folder / "out").exists()
    return ran.stderr


@pytest.fixture
def good(models, data, tmp_path):
    return settings_of(models["qwen2"], data, tmp_path / "out")


def test_keys(good, tmp_path):
    assert "the nearest known key is learning_rate" in error_of(good | {"learning_rte": 1}, tmp_path)
    assert "learning_rate: \"fast\"" in error_of(good | {"learning_rate": "fast"}, tmp_path)
    assert "deepspeed" in error_of(good, tmp_path, "deepspeed=z3.json")
    assert "stage: ppo is known" in error_of(good, tmp_path, "--stage", "ppo")
    assert "keep one" in error_of(good | {"warmup_ratio": 0.1, "warmup_steps": 3}, tmp_path)
    assert "take constant_with_warmup" in error_of(
        good | {"warmup_steps": 3, "lr_scheduler_type": "constant"}, tmp_path)
    assert "model_name_or_path is missing" in error_of(good | {"model_name_or_path": None}, tmp_path)


def test_broken_configuration(tmp_path):
    assert "config.json, line 2: broken JSON" in error_of('{"seed": 1,\n"bf16": }', tmp_path)
    assert '"seed" is given twice' in error_of('{"seed": 1,\n"seed": 2}', tmp_path)
    config = tmp_path / "broken.yaml"
    config.write_text("seed: 1\nbf16: [true\n")
    ran = subprocess.run([PROGRAM, "train", config], capture_output=True, text=True)
    assert ran.returncode == 1 and "broken.yaml" in ran.stderr and "line" in ran.stderr
    ran = subprocess.run([PROGRAM, "train", tmp_path / "gone.yaml"], capture_output=True, text=True)
    assert ran.returncode == 1 and "gone.yaml: No such file" in ran.stderr


def with_rows(good, folder, text, entry="{}", name="rows.json"):
    (folder / name).write_text(text)
    entry = {"file_name": name} | json.loads(entry)
    (folder / "dataset_info.json").write_text(json.dumps({"rows": entry}))
    return good | {"dataset": "rows", "dataset_dir": str(folder)}


def test_data(good, tmp_path):
    assert "the nearest is chats" in error_of(good | {"dataset": "chat"}, tmp_path)
    assert "there is no dataset alpaca; there are: " in error_of(good | {"dataset": "alpaca"}, tmp_path)
    assert "there is no " in error_of(good | {"dataset_dir": str(tmp_path / "gone")}, tmp_path)
    broken = with_rows(good, tmp_path, '[{"instruction": "a", "output": "b"},\n{"instruction"]')
    assert "rows.json, line 2: broken JSON" in error_of(broken, tmp_path)
    wrong = error_of(with_rows(good, tmp_path, '[{"question": "a", "answer": "b"}]'), tmp_path)
    assert "there is no column output" in wrong and '"response":"answer"' in wrong
    silent = with_rows(good, tmp_path, '[{"instruction": "a", "output": "b"}, {"instruction": "a", "output": ""}]')
    assert "rows.json, row 2: the row has no answer" in error_of(silent, tmp_path)
    (tmp_path / "dataset_info.json").write_text('{"rows": {"file_name": "gone.json"}}')
    assert "gone.json" in error_of(silent, tmp_path)


def test_processes(good, tmp_path):
    two = {"sequence_parallel_size": 2}
    assert "Set nproc_per_node: 2" in error_of(good | two, tmp_path, NPROC_PER_NODE="1")
    assert "does not divide" in error_of(good | two | {"nproc_per_node": 3}, tmp_path)
    assert "does not divide" in error_of(good | two, tmp_path, NPROC_PER_NODE="3")
    heads = good | {"nproc_per_node": 3, "sequence_parallel_size": 3, "sequence_parallel_mode": "ulysses"}
    assert "zigzag-ring" in error_of(heads, tmp_path)
    usp = good | {"nproc_per_node": 4, "sequence_parallel_size": 4, "sequence_parallel_mode": "usp"}
    degrees = {"sequence_parallel_ulysses_degree": 4, "sequence_parallel_ring_degree": 2}
    assert "is 8, and sequence_parallel_size is 4" in error_of(usp | degrees, tmp_path)
    waves = good | two | {"nproc_per_node": 2, "sequence_parallel_mode": "llama3", "sequence_parallel_head_waves": 2}
    assert "llama3 has no use for it" in error_of(waves, tmp_path)
    assert "MASTER_ADDR" in error_of(good, tmp_path, NNODES="2")
    assert "NODE_RANK=2 does not fit NNODES=2" in error_of(good, tmp_path, NNODES="2", NODE_RANK="2")
    assert "differ" in error_of(good | {"nproc_per_node": 2}, tmp_path, NPROC_PER_NODE="3")
    assert "whole number" in error_of(good, tmp_path, NPROC_PER_NODE="two")
    assert "cannot start" in error_of(good | {"nproc_per_node": 2}, tmp_path, TORCHRUN="/nowhere/torchrun")


def test_model_and_output(good, tmp_path):
    assert "config.json" in error_of(good | {"model_name_or_path": str(tmp_path)}, tmp_path)
    assert "download the folder" in error_of(good | {"model_name_or_path": "some/model"}, tmp_path)
    itself = {"output_dir": good["model_name_or_path"], "overwrite_output_dir": True}
    assert "is the folder of model_name_or_path" in error_of(good | itself, tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trainer_state.json").write_text("{}")
    ran, _ = run(good, tmp_path)
    assert ran.returncode == 1 and "overwrite_output_dir" in ran.stderr
    assert os.listdir(tmp_path / "out") == ["trainer_state.json"]


def test_data_under_two_launched_ranks(good, tmp_path):
    """A mistake that only the workers meet: said once, and torchrun adds nothing."""
    rows = '[{"instruction": "a", "output": "b"}, {"instruction": "a", "output": ""}]'
    settings = with_rows(good, tmp_path, rows) | {"nproc_per_node": 2}
    ran, _ = run(settings, tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.count("error: ") == 1 and "Traceback" not in ran.stderr, ran.stderr
    assert "row 2: the row has no answer" in ran.stderr


def test_commands(tmp_path):
    def words(*arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)

    assert "the nearest is train" in words("trian").stderr
    assert words("trian").returncode == 1
    assert words("version").stdout.startswith("longspan ")
    assert words().returncode == 0 and "longspan help train" in words().stdout
    assert "cutoff_len" in words("help", "train").stdout == words("train", "--help").stdout
    for line in ("torch", "threads", "CUDA"):
        assert line in words("env").stdout
    assert "--vocab-size is missing" in words("tokenizer", "--files", "a", "--output", "b").stderr
    assert "the nearest is --output" in words("init", "--ouput", "x").stderr
    # What is near to nothing gets no suggestion.
    assert "there is no command wandb; `longspan help` names all\n" in words("wandb").stderr
    assert "there is no command and no key wandb; `longspan help` names" in words("help", "wandb").stderr
    assert "there is no option --colour; see `longspan help init`" in words("init", "--colour", "x").stderr
    assert "there is no key colour; `longspan help chat` names all" in words("chat", "model", "colour=1").stderr


def test_from_nothing_to_a_trained_model(tmp_path):
    """tokenizer, init, train on two processes: the way of a new user."""
    text = tmp_path / "text.txt"
    text.write_text(open(os.__file__, encoding="utf-8").read())
    folder, model = str(tmp_path / "tokenizer"), str(tmp_path / "model")
    shape = dict(
        model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_act="silu", vocab_size=512,
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=10000.0,
        tie_word_embeddings=True, initializer_range=0.02,
    )
    (tmp_path / "config.json").write_text(json.dumps(shape))
    for command in (
        ["tokenizer", "--files", text, "--vocab-size", "500", "--output", folder],
        ["init", "--config", tmp_path / "config.json", "--output", model, "--tokenizer", folder],
    ):
        ran = subprocess.run([PROGRAM, *command], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        again = subprocess.run([PROGRAM, *command], capture_output=True, text=True)
        assert again.returncode == 1 and "nothing was written" in again.stderr
    settings = with_rows({}, tmp_path, json.dumps([{"instruction": "hello", "output": "world"}] * 4))
    settings |= dict(
        model_name_or_path=model, do_train=True, output_dir=str(tmp_path / "out"), max_steps=2,
        per_device_train_batch_size=1, nproc_per_node=2, sequence_parallel_size=2, device="cpu",
    )
    ran, _ = run(settings, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out" / "model.safetensors").exists()
