"""A run goes on only where what it stands on is still the same; what else has changed is named. And no text of others
commands the terminal."""

import json
import os
import pty
import re
import shutil
import subprocess

import pytest
from conftest import PROGRAM, Running, settings_of
from test_resume import LORA, settings, succeeds  # noqa: F401


def change_byte(path, place):
    """Size and time stay what they were, as after a copy that keeps times."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns


def refused(settings, *words):
    run = Running(settings).wait()
    assert run.status == 1 and run.text.count("error: ") == 1, run.text
    for word in (*words, "overwrite_output_dir"):
        assert word in run.text, run.text


@pytest.fixture
def base(models, tmp_path):
    return shutil.copytree(models["llama"], tmp_path / "base")


def test_an_adapter_goes_on_beside_its_own_weights_only(settings, base, tmp_path):  # noqa: F811
    keys = dict(max_steps=2, save_steps=1, model_name_or_path=str(base)) | LORA
    succeeds(settings("run", **keys))
    weights = base / "model.safetensors"
    change_byte(weights, -3)
    refused(settings("run", **keys), "checkpoint-2 cannot go on", f"{weights} (model weights)",
            "now, and had", "fits no other weights")
    change_byte(weights, -3)  # as it was, but written anew
    refused(settings("run", **keys, lora_rank=4), "lora_rank was 8, and is 4 now")
    moved = base.rename(tmp_path / "moved")
    on = succeeds(settings("run", **keys | dict(model_name_or_path=str(moved), max_steps=3, weight_decay=0.1,
                                               lora_alpha=32)))
    assert "lora_alpha was 16 and is 32 from step 3 on" in on.text
    assert "weight_decay was 0 and is 0.1 from step 3 on" in on.text
    assert "max_steps was 2 and is 3 from step 3 on" in on.text
    assert "is not what it was" not in on.text and "not compared" not in on.text
    assert on.text.count("from step 3 on\n") == 3, on.text


def test_rows_come_from_the_same_files(settings, base):  # noqa: F811
    keys = dict(max_steps=2, save_steps=1, model_name_or_path=str(base))
    given = settings("run", **keys)
    succeeds(given)
    data = type(base)(given["dataset_dir"]) / "chats.json"
    letter = data.read_bytes().rindex(b'"output": "') + 12
    change_byte(data, letter)
    refused(given, f"{data} (training data)", "rows and their order")
    change_byte(data, letter)
    # Other bytes that make the same rows are named. All that is trained is in the checkpoint: the base is named, and so
    # are keys.
    for name, more in [("tokenizer.json", b" "), ("chat_template.jinja", b"{# and more #}"), ("config.json", b" ")]:
        with (base / name).open("ab") as file:
            file.write(more)
    with data.open("ab") as file:
        file.write(b" ")
    change_byte(base / "model.safetensors", -3)
    on = succeeds(given | dict(learning_rate=5e-4, max_steps=3))
    for word in ("learning_rate was 0.001 and is 0.0005 from step 3 on",
                 "model.safetensors (model weights) is not what it was", "The checkpoint's weights are trained on.",
                 "config.json (model configuration) is not what it was", "What it says now counts from here on.",
                 f"{base / 'tokenizer.json'} and 1 more (tokenizer) is not what it was",
                 f"{data} (training data) is not what it was"):
        assert word in on.text, on.text
    assert on.text.count(" The rows are the same.\n") == 2, on.text


# What moves cursors, sets titles, turns the direction of writing: none of it may arrive as it is.
ORDERS = "\x1b]0;title\x07\x1b[2J\u009b31m\u202eend"
ESCAPED = r"\x1b]0;title\x07\x1b[2J\u009b31m\u202eend"
COMMANDS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def said(*arguments, status=1, **more):
    ran = subprocess.run([PROGRAM, *arguments], capture_output=True, timeout=60, **more)
    assert ran.returncode == status, ran.stderr
    text = (ran.stdout + ran.stderr).decode()  # which must be UTF-8
    assert not COMMANDS.search(text), ascii(text)
    return text


def test_errors_hold_no_commands(models, data, tmp_path):
    good = settings_of(models["qwen2"], data, tmp_path / "out")
    config = tmp_path / "config.json"

    def error_of(changes):
        config.write_text(json.dumps(good | changes))
        return said("train", config)

    assert ESCAPED in error_of({ORDERS: 1})
    assert "..." in (long := error_of({"x" * 1000: 1})) and "x" * 100 not in long
    assert r"\x1b]0;title\x07" in error_of({"dataset": ORDERS})
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": ORDERS + ".json"}}))
    assert ESCAPED in error_of({"dataset": "rows", "dataset_dir": str(tmp_path)})
    assert r"caf\xe9.yaml" in said("train", os.fsencode(tmp_path) + b"/caf\xe9.yaml")
    assert ESCAPED in said(ORDERS) and ESCAPED in said("help", ORDERS)
    config.with_suffix(".yaml").write_text('seed: !a%1b%5b2J 1\n"\\e[31mkey": !b%1b%5b2J 1\n')
    assert r"unknown key \x1b[31mkey" in said("train", config.with_suffix(".yaml"))


def test_names_of_tensors_hold_no_commands(models, data, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    model = shutil.copytree(models["qwen2"], tmp_path / "model")
    save_file(load_file(model / "model.safetensors") | {ORDERS: torch.zeros(1)}, model / "model.safetensors",
              metadata={"format": "pt"})
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings_of(model, data, tmp_path / "out")))
    assert ESCAPED in said("train", config)


def test_previews_hold_no_commands(models, tmp_path):
    rows = [dict(instruction=ORDERS, input="", output="answer " + ORDERS)] * 4
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings_of(models["qwen2"], tmp_path, tmp_path / ("out\x1b[31m"), dataset="rows",
                                             max_steps=1)))
    text = said("train", config, status=0, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert "answer " + ESCAPED in text and r"out\x1b[31m" in text


def test_answers_hold_no_commands_on_a_terminal(models, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": ORDERS}) + "\n")
    command = [PROGRAM, "generate", prompts, models["qwen2"], "max_new_tokens=1"]
    piped = subprocess.run(command, capture_output=True, timeout=60)
    assert json.loads(piped.stdout)["prompt"] == ORDERS and "\u202e" in piped.stdout.decode()
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    shown = b""
    try:
        while part := os.read(master, 4096):
            shown += part
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 0
    os.close(master)
    text = shown.decode().replace("\r\n", "\n")
    assert "predict" in text and r"\u202eend" in text and not COMMANDS.search(text), ascii(text)
