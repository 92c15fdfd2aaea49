"""`longspan generate` and `longspan chat` on pictures, against transformers' generate()."""

import json
import os
import random
import subprocess

import av
import pytest
import torch
import transformers
from conftest import PROGRAM, write_model
from picture_models import GEMMA_SIDE, GEMMA_TEXT, MODELS, write_model_with_pictures
from PIL import Image
from video_files import needs_decoder, write_video
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

NEW_TOKENS = 24
# Texts, and the numbers of their pictures: none, one, two, and one twice; the last begins as the one before it.
PROMPTS = [("What is it?", []), ("Look: <image>What is it?", [0]), ("<image>Then <image>which is larger?", [1, 2]),
           ("<image>Then <image>which is larger?", [1, 3]), ("<image><image> and <image>", [3, 0, 3])]


@pytest.fixture(scope="module", params=list(MODELS))
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("answers") / request.param
    # With Gemma's tied head, a random model repeats one token.
    write_model_with_pictures(place, request.param, std=0.2, tied_head=False)
    side, rng = 2 * MODELS[request.param][1], random.Random(5)
    sizes = [(9, 9), (12, 10), (8, 11), (12, 10)]
    if request.param == "gemma3":
        sizes = [(GEMMA_SIDE // side,) * 2] * 4
    for i, (width, height) in enumerate(sizes):
        Image.frombytes("RGB", (width * side, height * side),
                        rng.randbytes(3 * width * height * side * side)).save(place / f"{i}.png")
    return place


def longspan(*arguments, status=0, stdin=""):
    ran = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, input=stdin,
                         env=dict(os.environ, OMP_NUM_THREADS="1"), timeout=120)
    assert ran.returncode == status, ran.stderr
    return ran


def prompt_of_qwen(folder, model, text, numbers):
    patch = model.config.vision_config.patch_size
    values = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3) if patch == 16 else {}
    processor = Qwen2VLImageProcessorPil(patch_size=patch, min_pixels=4 * patch * patch, max_pixels=1 << 24, **values)
    files, given = [Image.open(folder / f"{number}.png") for number in numbers], {}
    if files:
        given = dict(processor(files, return_tensors="pt"))
    for grid in given.get("image_grid_thw", []):
        text = text.replace("<image>", f"<|vision_start|>{'<|image_pad|>' * int(grid.prod() // 4)}<|vision_end|>", 1)
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" if folder.name == "qwen2_vl" else ""
    return f"{system}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", given


def prompt_of_gemma(folder, model, text, numbers):
    files, given = [Image.open(folder / f"{number}.png") for number in numbers], {}
    if files:
        processor = Gemma3ImageProcessorPil(size=dict(height=GEMMA_SIDE, width=GEMMA_SIDE))
        given = dict(pixel_values=processor(files, return_tensors="pt")["pixel_values"])
    text = text.replace("<image>", GEMMA_TEXT)
    return f"<bos><start_of_turn>user\n{text}<end_of_turn>\n<start_of_turn>model\n", given


def ids_of_prompt(folder, model, tokenizer, text, numbers):
    """The tokens of a prompt, and what else transformers' generate() is given."""
    gemma = folder.name == "gemma3"
    prompt, given = (prompt_of_gemma if gemma else prompt_of_qwen)(folder, model, text, numbers)
    ids = torch.tensor([tokenizer(prompt.removeprefix("<bos>"), add_special_tokens=False)["input_ids"]])
    if gemma:
        ids = torch.cat([torch.tensor([[tokenizer.bos_token_id]]), ids], 1)
    stand = ids == (model.config.image_token_index if gemma else model.config.image_token_id)
    given["token_type_ids" if gemma else "mm_token_type_ids"] = stand.int()
    return ids, given


def answers_of_transformers(folder, prompts):
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, numbers in prompts:
        ids, given = ids_of_prompt(folder, model, tokenizer, text, numbers)
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                             max_new_tokens=NEW_TOKENS, **given)
        answer = out[0, ids.shape[1]:].tolist()
        ends = model.generation_config.eos_token_id
        yield tokenizer.decode(answer[:-1] if answer[-1] in (ends if isinstance(ends, list) else [ends]) else answer)


def prompt_across(folder, chunk):
    """A prompt whose picture begins before this token and ends behind it."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for count in range(0, chunk, 3):
        prompt = ("Seed " * count + "<image>What?", [0])
        ids, given = ids_of_prompt(folder, model, tokenizer, *prompt)
        stand = next(value for key, value in given.items() if key.endswith("token_type_ids"))[0].nonzero().flatten()
        if stand[0] < chunk - 2 and stand[-1] > chunk + 2:
            return prompt
    raise AssertionError("no such prompt")


def prompts_file(folder, as_paths, prompts=PROMPTS):
    rows = []
    for text, numbers in prompts:
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
    expected = list(answers_of_transformers(folder, PROMPTS))
    assert len(set(expected)) == len(PROMPTS)
    assert answers(folder, prompts_file(folder, as_paths=True), "batch_size=1") == expected
    assert answers(folder, prompts_file(folder, as_paths=False), "batch_size=3") == expected


def test_a_picture_across_passes(folder):
    """The decoder reads a prompt in passes of 512 tokens, and a picture whose tokens see each other in one pass."""
    prompts = [prompt_across(folder, 512)]
    assert answers(folder, prompts_file(folder, True, prompts)) == list(answers_of_transformers(folder, prompts))


def test_chat(folder):
    ran = longspan("chat", folder, f"template={folder.name}", f"max_new_tokens={NEW_TOKENS}", "temperature=0",
                   "skip_special_tokens=false", stdin=f"Look: <image:{folder}/0.png>What is it?")
    assert ran.stdout.rstrip("\n") == next(answers_of_transformers(folder, PROMPTS[1:2])).rstrip("\n")


@needs_decoder
def test_video_files(folder):
    """A file in the text, in the column, and a folder of its frames."""
    side = 2 * MODELS[folder.name][1]
    write_video(folder / "film.mp4", "mpeg4", num_frames=8, height=3 * side, width=4 * side, rate=4)
    (folder / "frames").mkdir()
    with av.open(str(folder / "film.mp4")) as container:
        for i, frame in enumerate(container.decode(video=0)):
            if i in (0, 2, 4, 7):  # those that LLaMA-Factory takes of two seconds
                frame.to_image().save(folder / "frames" / f"{i}.png")
    rows = [dict(prompt="<video:film.mp4>What happens?"), dict(prompt="<video>What happens?", videos=["film.mp4"]),
            dict(prompt="<video:frames/>What happens?")]
    file = folder / "films.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if folder.name == "gemma3":
        assert "the model takes none" in longspan("generate", file, folder, "template=gemma3", status=1).stderr
        return
    one, other, frames = answers(folder, file)
    assert one == other
    if folder.name == "qwen2_vl":  # Qwen3-VL also reads the times of frames, which a folder does not have
        assert one == frames


def test_texts_that_look_like_tags(folder):
    """Plain text stays what it is, where it names no file."""
    rows = [dict(prompt="A sitemap has <image:loc> and <image>", images=3), dict(prompt="No <video> here")]
    file = folder / "tags.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(answers(folder, file)) == 2


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
