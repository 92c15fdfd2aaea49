"""`longspan generate` and `longspan chat` on pictures, against transformers' generate()."""

import json
import os
import random
import subprocess

import pytest
import torch
import transformers
from conftest import PROGRAM, write_model
from picture_models import MODELS, write_model_with_pictures
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

NEW_TOKENS = 24
# Texts, and the numbers of their pictures: none, one, two, and one twice; the last begins as the one before it.
PROMPTS = [("What is it?", []), ("Look: <image>What is it?", [0]), ("<image>Then <image>which is larger?", [1, 2]),
           ("<image>Then <image>which is larger?", [1, 3]), ("<image><image> and <image>", [3, 0, 3])]


@pytest.fixture(scope="module", params=list(MODELS))
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("answers") / request.param
    write_model_with_pictures(place, request.param, std=0.2)
    side, rng = 2 * MODELS[request.param][1], random.Random(5)
    for i, (width, height) in enumerate([(9, 9), (12, 10), (8, 11), (12, 10)]):
        Image.frombytes("RGB", (width * side, height * side),
                        rng.randbytes(3 * width * height * side * side)).save(place / f"{i}.png")
    return place


def longspan(*arguments, status=0, stdin=""):
    ran = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, input=stdin,
                         env=dict(os.environ, OMP_NUM_THREADS="1"), timeout=120)
    assert ran.returncode == status, ran.stderr
    return ran


def answers_of_transformers(folder):
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    patch = model.config.vision_config.patch_size
    values = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3) if patch == 16 else {}
    processor = Qwen2VLImageProcessorPil(patch_size=patch, min_pixels=4 * patch * patch, max_pixels=1 << 24, **values)
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" if folder.name == "qwen2_vl" else ""
    for text, numbers in PROMPTS:
        given, begin, end = {}, "<|vision_start|>", "<|vision_end|>"
        if numbers:
            given = dict(processor([Image.open(folder / f"{number}.png") for number in numbers], return_tensors="pt"))
        for grid in given.get("image_grid_thw", torch.empty(0)):
            text = text.replace("<image>", f"{begin}{'<|image_pad|>' * int(grid.prod() // 4)}{end}", 1)
        parts = [f"{system}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"]
        ids = torch.tensor([tokenizer(parts[0], add_special_tokens=False)["input_ids"]])
        kinds = (ids == model.config.image_token_id).int()
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, do_sample=False,
                             max_new_tokens=NEW_TOKENS, **given)
        yield tokenizer.decode([token for token in out[0, ids.shape[1]:].tolist()])


def prompts_file(folder, as_paths):
    rows = []
    for text, numbers in PROMPTS:
        row = dict(prompt=text)
        for number in numbers if as_paths else []:
            row["prompt"] = row["prompt"].replace("<image>", f"<image:{number}.png>", 1)
        rows.append(row if as_paths else row | dict(images=[f"{number}.png" for number in numbers]))
    file = folder / f"prompts-{as_paths}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def answers(folder, file, *keys):
    ran = longspan("generate", file, folder, f"template={folder.name}", f"max_new_tokens={NEW_TOKENS}", "temperature=0",
                   "skip_special_tokens=false", *keys)
    return [json.loads(line)["predict"] for line in ran.stdout.splitlines()]


def test_answers(folder):
    """Whether files are in the text or in a column, and whatever a sequence of the decoder held before."""
    expected = list(answers_of_transformers(folder))
    assert len(set(expected)) == len(PROMPTS)
    assert answers(folder, prompts_file(folder, as_paths=True), "batch_size=1") == expected
    assert answers(folder, prompts_file(folder, as_paths=False), "batch_size=3") == expected


def test_chat(folder):
    ran = longspan("chat", folder, f"template={folder.name}", f"max_new_tokens={NEW_TOKENS}", "temperature=0",
                   "skip_special_tokens=false", stdin=f"Look: <image:{folder}/0.png>What is it?")
    assert ran.stdout.rstrip("\n") == list(answers_of_transformers(folder))[1].rstrip("\n")


def test_refusals(folder, tmp_path):
    def says(prompt, **columns):
        file = tmp_path / "prompts.jsonl"
        file.write_text(json.dumps(dict(prompt=prompt) | columns) + "\n")
        return longspan("generate", file, folder, f"template={folder.name}", status=1).stderr

    (tmp_path / "cut.png").write_bytes((folder / "0.png").read_bytes()[:2000])
    assert "there is no file other.png" in says("<image:other.png>What?")
    assert "cut.png" in says("<image:cut.png>What?")
    assert "2 tags <image>" in says("<image><image>", images=[str(folder / "0.png")])
    assert "an address" in says("<image:https://example.org/a.png>What?")
    words = tmp_path / "words"
    words.mkdir()
    write_model(words, "qwen2")
    file = tmp_path / "words.jsonl"
    file.write_text(json.dumps(dict(prompt=f"<image:{folder}/0.png>What?")) + "\n")
    assert "(Qwen2ForCausalLM) takes none" in longspan("generate", file, words, "template=chatml", status=1).stderr
