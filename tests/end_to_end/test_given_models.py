"""What strangers give as a model: told by what it is, what is wanted and the way there."""

import json
import pathlib
import shutil
import subprocess

import pytest
from conftest import PROGRAM, settings_of

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 988097824\n"
PAGE = "\n<!DOCTYPE html>\n<html class=''><head><title>model.safetensors</title></head></html>\n"


def complaint(words, folder):
    ran = subprocess.run([PROGRAM, *words], capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    assert ran.returncode == 1 and ran.stderr.count("error: ") == 1, ran.stderr
    return ran.stderr


@pytest.fixture
def error_of(models, data, tmp_path):
    """error_of(model, **keys) of `longspan train`."""
    def run(model, **keys):
        config = tmp_path / "config.json"
        config.write_text(json.dumps(settings_of(model, data, tmp_path / "out", **keys)))
        text = complaint(["train", config], tmp_path)
        assert not (tmp_path / "out").exists()
        return text
    return run


@pytest.fixture
def model(models, tmp_path):
    """A copy, to be spoilt."""
    return pathlib.Path(shutil.copytree(models["llama"], tmp_path / "model"))


def test_files(error_of, tmp_path, model):
    for name, content, what, remedy in (
            ("model-Q4_K_M.gguf", b"GGUF\3\0\0\0", "is a GGUF file", "gguf_file=NAME"),
            ("no-suffix", b"GGUF\3\0\0\0", "is a GGUF file", "Download the folder of the original model"),
            ("weights.pth", b"PK\3\4", "is a file of pickled weights", "save_pretrained"),
            ("model.zip", b"PK\3\4", "is an archive", "Unpack"),
            ("notes", b"hello", "is a file", "path of the folder")):
        path = tmp_path / name
        path.write_bytes(content)
        text = error_of(path)
        assert f"{path} {what}" in text and "Wanted is a Hugging Face model folder" in text and remedy in text, text
    text = error_of(model / "model.safetensors")
    assert "is one file of a model's weights" in text and f"Give the folder that holds it, {model}, instead." in text, text
    assert f"is a file. Give the folder that holds it, {model}, instead." in error_of(model / "config.json")
    # Of a file in the folder where the program runs: its name in full, not a dot before the full stop.
    model.joinpath("run.json").write_text(json.dumps(settings_of("config.json", "data", "out")))
    for name in ("config.json", "model.safetensors", "./config.json"):
        text = complaint(["train", "run.json", f"model_name_or_path={name}"], model)
        assert f"Give the folder that holds it, {model}, instead." in text, text


def test_folders_without_a_model(error_of, tmp_path, model):
    def folder(name, *files):
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text("{}")
        return tmp_path / name

    (tmp_path / "empty").mkdir()
    assert "has no config.json: it is empty" in error_of(tmp_path / "empty")
    assert "but m.gguf, a file of llama.cpp's" in error_of(folder("gguf", "m.gguf"))
    assert "it is in the layout of the model's makers" in error_of(folder("meta", "params.json", "consolidated.00.pth"))
    assert "but weights.pt, pickled weights" in error_of(folder("pickled", "weights.pt"))
    assert "Fetch the other files, too" in error_of(folder("half", "model.safetensors"))
    cache = folder("models--org--name", "refs/main", "snapshots/1a2b/config.json")
    assert "it is a cache of the hub. Wanted" in error_of(cache) and f"Give {cache}/snapshots/1a2b instead." in error_of(cache)
    run = folder("run", "checkpoint-5/config.json")
    assert f"Give {run}/checkpoint-5 instead." in error_of(run)


def test_adapters_as_models_and_models_as_adapters(error_of, tmp_path, model):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(dict(base_model_name_or_path="models/base", r=8, lora_alpha=16)))
    text = error_of(adapter)
    assert "is the folder of an adapter of the model models/base, not of a model" in text, text
    assert "adapter_name_or_path" in text and "longspan export" in text
    text = error_of(model, finetuning_type="lora", adapter_name_or_path=str(model))
    assert "It holds a whole model" in text and "remove adapter_name_or_path" in text, text
    shutil.copy(model / "config.json", adapter)
    assert "It holds an adapter, not a model" in error_of(adapter)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content, what, remedy", [(POINTER, "is a Git LFS pointer to a file of 988097824 bytes", "git lfs pull"),
                                                   (PAGE, "is a web page, not the file itself", "Download it again")],
                         ids=["pointer", "page"])
def test_files_that_stand_for_others(name, content, what, remedy, error_of, model):
    (model / name).write_text(content)
    text = error_of(model)
    assert f"{model / name} {what}" in text and remedy in text, text


def test_weights_that_are_no_plain_numbers(error_of, model, models):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | dict(quantization_config=dict(quant_method="hqq", bits=4))))
    for text in (error_of(model), error_of(models["llama"], stage="dpo", ref_model=str(model))):
        assert "has quantization_config (quant_method hqq)" in text and "original model" in text, text
    fp8 = dict(quant_method="fp8", fmt="e4m3", weight_block_size=[128, 128])  # as DeepSeek-V3 is published
    (model / "config.json").write_text(json.dumps(config | dict(quantization_config=fp8)))
    text = error_of(model)
    assert "quant_method fp8" in text and "fp8_cast_bf16.py" in text and "dequantize=True" in text, text
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").rename(model / "pytorch_model-00001-of-00001.bin")
    text = error_of(model)
    assert "has neither model.safetensors nor" in text and "It has pytorch_model-00001-of-00001.bin, pickled" in text, text


def test_export_dir(model, tmp_path):
    config = tmp_path / "export.json"

    def text(**keys):
        before = {path: path.stat().st_mtime_ns for path in model.iterdir()}
        config.write_text(json.dumps(dict(model_name_or_path=str(model)) | keys))
        said = complaint(["export", config], tmp_path)
        assert before == {path: path.stat().st_mtime_ns for path in model.iterdir()}
        return said

    assert "export_dir is missing: give a folder for the merged model" in text()
    assert "is the folder of model_name_or_path" in text(export_dir=str(model))
    assert "is the folder of model_name_or_path" in text(export_dir=f"{model}/../model/")
    assert "is inside of the folder of model_name_or_path" in text(export_dir=str(model / "merged"))
    assert "is a file; name a folder" in text(export_dir=str(config))
    used = tmp_path / "used"
    used.mkdir()
    (used / "notes.txt").touch()
    assert "is not empty (it holds notes.txt)" in text(export_dir=str(used))
    assert "export_dir" in text(export_dir=str(config / "below")) and "cannot be written to" in text(export_dir=str(config / "below"))
    assert list(used.iterdir()) == [used / "notes.txt"]
    good = tmp_path / "new" / "merged"
    config.write_text(json.dumps(dict(model_name_or_path=str(model), export_dir=str(good))))
    ran = subprocess.run([PROGRAM, "export", config], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and (good / "model.safetensors").exists(), ran.stderr
