"""Numbers of files, keys and options that no model, data set or machine has: refused by name, before memory is taken
by them. Nothing of them is ever taken for another number."""

import json
import pathlib
import shutil
import struct
import subprocess
import sys

import pytest
from conftest import PROGRAM, settings_of

MOST = 1 << 30  # bytes of a refusal; libtorch's own are a third of it
# What this process has taken would count as the program's, if it started it itself.
STARTER = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print("\\npeak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(status)
"""


def ran(*words, status=1):
    done = subprocess.run([sys.executable, "-c", STARTER, PROGRAM, *map(str, words)], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    assert "internal error" not in done.stderr, done.stderr
    assert int(done.stdout.split()[-1]) < MOST, done.stdout
    return done.stderr if status else done.stdout


@pytest.fixture
def error_of(models, data, tmp_path):
    """error_of(model=folder, **keys) of `longspan train`."""
    def run(model=models["qwen2"], **keys):
        config = tmp_path / "keys.json"
        config.write_text(json.dumps(settings_of(model, data, tmp_path / "out") | keys))
        text = ran("train", config)
        assert not (tmp_path / "out").exists()
        return text
    return run


@pytest.fixture
def model(models, tmp_path):
    """A copy, to be spoilt."""
    return pathlib.Path(shutil.copytree(models["qwen2"], tmp_path / "model"))


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_keys(error_of):
    """All that is wrong is said at once."""
    text = error_of(num_train_epochs=1e18, save_steps=1e19, val_size=1e19, per_device_train_batch_size=10**9,
                    eval_strategy="epoch", max_steps=2**63, warmup_steps=1e300, cutoff_len=2**40, nproc_per_node=10**6)
    for key, wanted in (("num_train_epochs: 1e+18", "a number above 0, at most 1000000000"),
                        ("save_steps: 1e+19", "below 1; at most 1000000000000000"),
                        ("val_size: 1e+19", "at most 1000000000000000"),
                        ("per_device_train_batch_size: 1000000000", "at least 1, at most 1000000"),
                        ("max_steps: 9223372036854775808", "at most 1000000000000000"),
                        ("warmup_steps: 1e+300", "at most 1000000000000000"),
                        ("cutoff_len: 1099511627776", "at most 2147483647"),
                        ("nproc_per_node: 1000000", "at most 4096")):
        assert any(key in line and wanted in line for line in text.splitlines()), (key, text)
    text = error_of(per_device_train_batch_size=10**6, cutoff_len=2**31 - 1)
    assert "1000000 rows of up to 2147483647 tokens (cutoff_len) are more than the 1099511627776" in text


def test_config_of_another_size_than_the_weights(error_of, model):
    change(model / "config.json", num_hidden_layers=10_000_000, layer_types=None)
    assert "config.json says num_hidden_layers 10000000, and the weights have 2 layers" in error_of(model)
    change(model / "config.json", num_hidden_layers=2**64 - 1)
    assert "num_hidden_layers is 18446744073709551615, which is too large" in error_of(model)
    change(model / "config.json", num_hidden_layers=2, vocab_size=2**31 - 1)
    assert "but config.json asks for [2147483647, 112]" in error_of(model)


def test_lying_headers_of_weights(error_of, model):
    path = model / "model.safetensors"
    for size, text in ((2**40, "its header should have 1099511627776 bytes"), (100_000_001, "the format allows 100000000")):
        with open(path, "r+b") as file:
            file.write(struct.pack("<Q", size))
            file.truncate(200_000_000)
        assert text in error_of(model)
    deep = b"[" * 50_000_000
    path.write_bytes(struct.pack("<Q", len(deep)) + deep)
    assert "its header is not a JSON object" in error_of(model)


def test_adapters(error_of, tmp_path):
    import torch
    from safetensors.torch import save_file

    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps(dict(peft_type="LORA", r=8, lora_alpha=16, target_modules=["o_proj"])))
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_%s.weight"
    matrices = {name % "A": torch.zeros(8, 112), name % "B": torch.zeros(112, 8)}
    save_file(matrices, adapter / "adapter_model.safetensors")
    keys = dict(finetuning_type="lora", adapter_name_or_path=str(adapter))
    change(config, r=10_000_000)
    text = error_of(**keys)
    assert "has shape [8, 112], but r is 10000000 in" in text, text
    change(config, r=4.7)
    assert "r: 4.7 was given; wanted is a whole number" in error_of(**keys)
    change(config, r=8)
    save_file({name: x.to(torch.int32) for name, x in matrices.items()}, adapter / "adapter_model.safetensors")
    assert "holds I32 numbers; F32, BF16, F16 and F64 are supported" in error_of(**keys)
    text = error_of(finetuning_type="lora", lora_rank=2**31 - 1)
    assert "lora_rank: 2147483647 makes an adapter of" in text and "this machine has" in text, text


def test_ids_that_no_model_has(error_of, model):
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert "e" in vocabulary
    vocabulary["e"] = 3_000_000_000
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = error_of(model)
    assert "3000000000" in text and "-1294967296" not in text, text


def test_ends_of_answers(model, tmp_path):
    (tmp_path / "prompts.txt").write_text("hello\n")
    (model / "generation_config.json").write_text(json.dumps(dict(eos_token_id=2**32 + 5)))
    words = ("generate", tmp_path / "prompts.txt", model, f"output={tmp_path / 'answers.jsonl'}")
    assert "generation_config.json: eos_token_id: 4294967301 was given" in ran(*words)
    (model / "generation_config.json").write_text(json.dumps(dict(max_new_tokens=2**64 - 1)))
    assert "generation_config.json: max_new_tokens is 18446744073709551615" in ran(*words)


def test_init(tmp_path):
    shape = dict(model_type="qwen2", vocab_size=2**40, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                 num_attention_heads=2, num_key_value_heads=1)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(shape))
    words = ("init", "--config", config, "--output", tmp_path / "made")
    assert "vocab_size is 1099511627776, it must be at most 2147483647" in ran(*words)
    change(config, vocab_size=2**31 - 1, hidden_size=2**20)
    text = ran(*words)
    assert "vocab_size 2147483647, hidden_size 1048576" in text and "this machine has" in text, text
    change(config, hidden_size=2**31 - 4, num_hidden_layers=2**31 - 1)
    assert "is more than the 9007199254740992 that can be counted" in ran(*words)
    assert not (tmp_path / "made").exists()


def test_compare(tmp_path):
    def write(name, *lines):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "trainer_log.jsonl").write_text("\n".join(lines) + "\n")
        return tmp_path / name

    small = ['{"loss": 5e-324, "current_steps": 1}', '{"loss": 1e-323, "current_steps": 2}']
    runs = ("compare", "--runs", write("a", *small), write("b", *small), "--output", tmp_path / "curves.png")
    assert "Picture: " in ran(*runs, status=0)
    for step in ("5e-324", "null", "18446744073709551615"):
        write("b", small[0], '{"loss": 1.0, "current_steps": %s}' % step)
        assert "line 2: current_steps " in ran(*runs)


def test_options(tmp_path):
    (tmp_path / "text.txt").write_text("some words\n")
    assert "at most 10000000" in ran("tokenizer", "--files", tmp_path / "text.txt", "--vocab-size", 10**12, "--output",
                                     tmp_path / "t")
    assert "at most 2147483647" in ran("bench", "attention", "--tokens", 10**12)
    assert "this machine has" in ran("bench", "attention", "--tokens", 2**31 - 1, "--heads", 2**20, "--kv-heads", 1)
    assert "at least 1, at most 4096" in ran("bench", "attention", "--ranks", 2**32 + 1)
