"""Each kind of file that the program reads, as what it must not be: a pipe, a folder, a circle of links, JSON too deep for
a stack, a number beyond all numbers. One clear error with the name of the file, status 1, and no waiting."""

import contextlib
import json
import os
import shutil
import subprocess

import pytest
from conftest import PROGRAM, settings_of

DEEP = "[" * 200_000
HUGE = '{"x": 1e999}'


def error_of(*arguments):
    """What it says when it ends with status 1. One that waits for anything is ended after a minute."""
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    ran = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                         stdin=subprocess.DEVNULL, env=environment | {"OMP_NUM_THREADS": "1"})
    assert ran.returncode == 1, (ran.returncode, ran.stderr)
    assert ran.stderr.count("error: ") == 1 and "internal error" not in ran.stderr, ran.stderr
    assert len(ran.stderr) < 2000, ran.stderr
    return ran.stderr


@contextlib.contextmanager
def replaced(path, make):
    """While it lasts, make(path) stands under the name; afterwards what was there before."""
    before = path.with_name(path.name + ".before")
    there = path.exists()
    if there:
        path.rename(before)
    try:
        make(path)
        yield
    finally:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if there:
            before.rename(path)


class Place:
    """A folder with everything that a run reads, and the commands that read it first."""

    def __init__(self, folder, model, data):
        self.model, self.adapter, self.data = folder / "model", folder / "adapter", folder / "data"
        self.folder = folder
        shutil.copytree(model, self.model)
        shutil.copytree(data, self.data)
        self.adapter.mkdir()
        (self.adapter / "adapter_config.json").write_text(json.dumps(
            {"base_model_name_or_path": str(self.model), "peft_type": "LORA", "r": 2, "lora_alpha": 4}))
        (self.adapter / "adapter_model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
        (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n')
        (folder / "text.txt").write_text("some text\n" * 100)
        (folder / "run").mkdir()
        (folder / "run" / "trainer_log.jsonl").write_text('{"current_steps": 1, "loss": 2.5}\n')
        settings = settings_of(self.model, self.data, folder / "out", deepspeed=str(folder / "deepspeed.json"))
        (folder / "config.json").write_text(json.dumps(settings))
        (folder / "deepspeed.json").write_text("{}")
        train = ["train", folder / "config.json"]
        generate = ["generate", folder / "prompts.jsonl"]
        init = ["init", "--config", self.model / "config.json", "--output", folder / "new"]
        self.readers = {
            "config.json": train,
            "deepspeed.json": train,
            "data/dataset_info.json": train,
            "data/chats.json": train,
            "model/config.json": train,
            "model/model.safetensors": train,
            "model/tokenizer.json": [*init, "--tokenizer", self.model],
            "model/tokenizer_config.json": [*init, "--tokenizer", self.model],
            "adapter/adapter_config.json": [*generate, self.adapter],
            "adapter/adapter_model.safetensors": [*generate, self.adapter],
            "adapter/longspan_adapter.json": [*generate, self.adapter],
            "model/generation_config.json": [*generate, self.model],
            "prompts.jsonl": [*generate, self.model],
            "run/trainer_log.jsonl": ["compare", "--runs", folder / "run", folder / "run"],
            "text.txt": ["tokenizer", "--files", folder / "text.txt", "--vocab-size", "300", "--output", folder / "t"],
        }


@pytest.fixture(scope="module")
def doors(models, data, tmp_path_factory):
    return Place(tmp_path_factory.mktemp("doors"), models["qwen2"], data)


FILES = ["config.json", "deepspeed.json", "data/dataset_info.json", "data/chats.json", "model/config.json",
         "model/model.safetensors", "model/tokenizer.json", "model/tokenizer_config.json",
         "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "adapter/longspan_adapter.json",
         "model/generation_config.json", "prompts.jsonl", "run/trainer_log.jsonl", "text.txt"]


@pytest.mark.parametrize("name", FILES)
def test_only_regular_files_are_read(doors, name):
    path = doors.folder / name
    kinds = {"it is a pipe": os.mkfifo, "links lead in a circle": lambda path: path.symlink_to(path.name)}
    if name in ("config.json", "data/dataset_info.json", "model/config.json", "model/tokenizer.json", "prompts.jsonl"):
        kinds["it is a folder"] = os.mkdir
    for words, make in kinds.items():
        with replaced(path, make):
            said = error_of(*doors.readers[name])
        assert words in said and str(path) in said


# Data sets and prompts that begin with [ are one list; others are read line by line.
@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith((".safetensors", ".txt"))])
def test_json_has_bounds(doors, name):
    path = doors.folder / name
    for text in (DEEP, HUGE):
        with replaced(path, lambda path: path.write_text(text)):
            said = error_of(*doors.readers[name])
        assert str(path) in said


def test_an_index_of_shards(doors):
    (doors.folder / "sharded").mkdir()
    shutil.copy(doors.model / "config.json", doors.folder / "sharded")
    index = doors.folder / "sharded" / "model.safetensors.index.json"
    command = ["train", doors.folder / "config.json", f"model_name_or_path={index.parent}"]
    for make, words in (
        (os.mkfifo, "it is a pipe"),
        (lambda path: path.write_text(DEEP), "within each other"),
        (lambda path: path.write_text('{"weight_map": {"a": 1e999}}'), "line 1"),
        (lambda path: path.write_text('{"weight_map": {"a": null}}'), "(weight_map): a is missing"),
        (lambda path: path.write_text("{}"), "weight_map is missing"),
    ):
        with replaced(index, make):
            said = error_of(*command)
        assert words in said and str(index) in said


def test_yaml_in_plain_words(doors):
    config = doors.folder / "config.yaml"
    for text, words in (("a: 1\n---\nb: 2\n", "one is wanted"), ("seed: *gone\n", "(*name)"),
                        ("a: &a [*a]\n", "config.yaml"), ("[" * 200_000, "config.yaml")):
        config.write_text(text)
        said = error_of("train", config)
        assert words in said
        for advice in ("from_str", "Option", "Policy", "Budget", "weak"):
            assert advice not in said, said


def test_a_huge_key(doors):
    config = doors.folder / "keys.json"
    config.write_text(json.dumps({"k" * 1_000_000: 1}))
    assert "unknown key kkkk" in error_of("train", config)


def test_values_of_other_kinds(doors):
    """What a reader of JSON throws when a value is not of the kind that is asked for."""
    log, rows = doors.folder / "run" / "trainer_log.jsonl", doors.data / "chats.json"
    with replaced(log, lambda path: path.write_text('{"current_steps": null, "loss": 2.5}\n')):
        assert "trainer_log.jsonl, line 1: current_steps is missing" in error_of(*doors.readers["run/trainer_log.jsonl"])
    prompts = doors.folder / "prompts.jsonl"
    deep = '{"a":' * 8000 + "1" + "}" * 8000
    call = {"from": "function_call", "value": '{"name": "f", "arguments": ' + deep + "}"}
    chat = [{"from": "human", "value": "a"}, call, {"from": "observation", "value": "b"}]
    with replaced(prompts, lambda path: path.write_text(json.dumps({"messages": chat}))):
        assert "at most 512" in error_of(*doors.readers["prompts.jsonl"])
    with replaced(prompts, lambda path: path.write_text('{"messages": [3]}')):
        assert "prompts.jsonl, line 1: a message is number" in error_of(*doors.readers["prompts.jsonl"])
    entry = {"chats": {"file_name": "chats.json", "formatting": "sharegpt"}}
    chats = json.dumps([{"messages": [{"role": "user", "content": "a"}, 3]}])
    with replaced(doors.data / "dataset_info.json", lambda path: path.write_text(json.dumps(entry))):
        with replaced(rows, lambda path: path.write_text(chats)):
            assert "there is no column conversations" in error_of("train", doors.folder / "config.json")
