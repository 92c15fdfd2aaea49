"""Training on pictures: the losses of transformers' model, whatever shares the work, and a folder that loads there."""

import json
import pathlib
import random
import shutil
import subprocess

import av
import peft
import pytest
import torch
import transformers
from conftest import ADAM_EPSILON, PROGRAM, Running, add_dataset, run_processes, run_to_end, settings_of, write_config
from device import accounted
from picture_models import GEMMA_COUNT, GEMMA_SIDE, MODELS, OTHERS, patch_of, template_of, write_model_with_pictures
from video_files import needs_decoder, write_video
from PIL import Image
from probes import data_probe
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

STEPS = 6
METHODS = ["allgather", "async-ulysses", "balanced-ulysses", "dummy-head-ulysses", "llama3", "loongtrain", "ring",
           "striped-ring", "ulysses", "usp", "xtuner-ulysses", "zigzag-ring"]
STAGES = {
    "kto": dict(stage="kto", dataset="verdicts"),
    "rm": dict(stage="rm", dataset="pairs"),
    "pt": dict(stage="pt", dataset="texts", packing=False),
}
ALONE = {}  # losses of one rank, by model


@pytest.fixture(scope="module", params=list(MODELS))
def folder(request, tmp_path_factory):
    """A small random model with a tokenizer and the processor's files, and a data set for it."""
    name = request.param
    place = tmp_path_factory.mktemp("trained") / name
    write_model_with_pictures(place, name, std=0.05)
    patch = patch_of(name)
    # Sides of whole merged patches within all limits: no processor resizes them.
    side, rng = 2 * patch, random.Random(4)
    sizes = [(9, 9), (12, 10), (8, 11), (16, 9)] if patch == 16 else [(3, 2), (2, 2), (4, 5), (7, 3)]
    if name == "gemma3":
        sizes = [(GEMMA_SIDE // side,) * 2] * 4
    for i, (width, height) in enumerate(sizes):
        Image.frombytes("RGB", (width * side, height * side),
                        rng.randbytes(3 * width * height * side * side)).save(place / f"{i}.png")
    rows = []
    for i in range(STEPS):
        count = [2, 0, 1, 3, 1, 0][i]
        rows.append(dict(messages=[dict(role="user", content="<image>".join(["What is it? "] * (count + 1))),
                                   dict(role="assistant", content=f"It is number {i}, I think.")],
                         images=[str(place / f"{(i + k) % 4}.png") for k in range(count)]))
    tags = dict(role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant")
    pairs = [row | dict(chosen=row["messages"][1], rejected=dict(role="assistant", content=f"A house, or {i}."),
                        messages=row["messages"][:1]) for i, row in enumerate(rows)]
    add_dataset(place, "pairs", pairs, formatting="sharegpt", ranking=True, tags=tags,
                columns=dict(messages="messages", chosen="chosen", rejected="rejected", images="images"))
    verdicts = [row | dict(good=i % 3 != 1) for i, row in enumerate(rows)]
    add_dataset(place, "verdicts", verdicts, formatting="sharegpt", tags=tags,
                columns=dict(messages="messages", images="images", kto_tag="good"))
    texts = [dict(text=" ".join(message["content"] for message in row["messages"]), images=row["images"]) for row in rows]
    add_dataset(place, "texts", texts, columns=dict(prompt="text", images="images"))
    frames = []
    for i in range(7):
        frames.append(str(place / f"frame{i}.png"))
        Image.frombytes("RGB", (4 * side, 3 * side), rng.randbytes(36 * side * side)).save(frames[-1])
    videos = [dict(messages=[dict(role="user", content="<video>Then <image>What happens? <video>"), row["messages"][1]],
                   images=[str(place / f"{i % 4}.png")], videos=[frames[:2 * (1 + i % 3)], frames[3:7]])
              for i, row in enumerate(rows)]
    if name == "gemma3":  # which takes no videos
        for i, row in enumerate(videos):
            row["messages"] = [dict(role="user", content="<image>Then <image>What happens? <image>"), row["messages"][1]]
            row |= dict(images=[str(place / f"{(i + k) % 4}.png") for k in range(3)], videos=[])
    add_dataset(place, "films", videos, formatting="sharegpt", tags=tags,
                columns=dict(messages="messages", images="images", videos="videos"))
    add_dataset(place, "seen", rows, formatting="sharegpt", columns=dict(messages="messages", images="images"), tags=tags)
    return place


def settings(folder, output, **changes):
    return settings_of(folder, folder, output, dataset="seen", template=template_of(folder.name), cutoff_len=2048,
                       max_steps=STEPS, gradient_accumulation_steps=1, lr_scheduler_type="constant", disable_shuffling=True,
                       freeze_vision_tower=False, freeze_multi_modal_projector=False, **changes)


def rows_of(folder, tmp_path, **keys):
    """The samples, by the probe of the data."""
    return data_probe.examples(write_config(settings(folder, tmp_path / "unused") | keys))


def given_to_gemma(config, document):
    """The arguments of transformers' Gemma 3 for a document."""
    tokens = torch.tensor([document["input_ids"]])
    given = dict(input_ids=tokens, labels=torch.tensor([document["labels"]]),
                 token_type_ids=(tokens == config.image_token_index).int())
    files = [Image.open(file) for picture in document.get("pictures", []) for file in picture["files"]]
    if files:
        processor = Gemma3ImageProcessorPil(size=dict(height=GEMMA_SIDE, width=GEMMA_SIDE))
        given |= dict(pixel_values=processor(files, return_tensors="pt")["pixel_values"])
    assert given["token_type_ids"].sum() == GEMMA_COUNT * len(files)
    return given


def given_to_qwen(config, document):
    patch = config.vision_config.patch_size
    values = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3) if patch == 16 else {}
    limits = dict(patch_size=patch, min_pixels=4 * patch * patch, max_pixels=1 << 24)
    processor = Qwen2VLImageProcessorPil(**limits, **values)
    kind = transformers.Qwen3VLVideoProcessor if patch == 16 else transformers.Qwen2VLVideoProcessor
    of_videos = kind(patch_size=patch, size=dict(shortest_edge=4 * patch * patch, longest_edge=1 << 24),
                     do_sample_frames=False, **values)
    tokens = torch.tensor([document["input_ids"]])
    kinds = (tokens == config.image_token_id).int() + 2 * (tokens == config.video_token_id).int()
    given = dict(input_ids=tokens, labels=torch.tensor([document["labels"]]), mm_token_type_ids=kinds)
    for is_video, name in ((False, "image_grid_thw"), (True, "video_grid_thw")):
        pictures = [picture for picture in document.get("pictures", []) if picture["is_video"] == is_video]
        if not pictures:
            continue
        files = [[Image.open(file) for file in picture["files"]] for picture in pictures]
        given |= dict(of_videos(files, return_tensors="pt") if is_video else
                      processor([file for file, in files], return_tensors="pt"))
        assert given[name].tolist() == [picture["grid"] for picture in pictures]
        if is_video and config.model_type == "qwen2_5_vl":
            given |= dict(second_per_grid_ts=torch.ones(len(pictures)))  # two frames of a list, at video_fps
    return given


def losses_of_transformers(folder, rows):
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=ADAM_EPSILON, weight_decay=0.0)
    given_to = given_to_gemma if folder.name == "gemma3" else given_to_qwen
    losses = []
    for row in rows:
        loss = model(**given_to(model.config, row["documents"][0])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # a row without pictures gives the tower zeros, as in LLaMA-Factory
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("dataset", ["seen", "films"])
def test_losses_of_transformers(dataset, folder, tmp_path):
    run = run_to_end(settings(folder, tmp_path / "run") | dict(dataset=dataset))
    losses, model = losses_of_transformers(folder, rows_of(folder, tmp_path, dataset=dataset))
    assert run.logged("loss") == pytest.approx(losses, rel=1e-5)
    saved, info = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    for (key, ours), theirs in zip(saved.named_parameters(), model.parameters()):
        if "vision_tower" in key and key.endswith("k_proj.bias"):  # its gradient is 0: keys are not rotated
            assert max(ours.norm(), theirs.norm()) < 1e-8, key
        else:
            assert (ours - theirs).norm() <= 1e-5 * theirs.norm(), key


@pytest.mark.parametrize("folder", list(OTHERS), indirect=True)
def test_other_families(folder, tmp_path):
    """transformers' losses with pictures and videos in the row, and the same losses where ranks share it."""
    keys = dict(dataset="films", max_steps=5)
    expected, _ = losses_of_transformers(folder, rows_of(folder, tmp_path, dataset="films")[:5])
    alone = run_to_end(settings(folder, tmp_path / "alone") | keys)
    assert alone.logged("loss") == pytest.approx(expected, rel=1e-5)
    shared = dict(sequence_parallel_size=3, sequence_parallel_mode="zigzag-ring")
    assert run_to_end(settings(folder, tmp_path / "shared") | keys | shared, 3).logged("loss") == \
        pytest.approx(alone.logged("loss"), rel=1e-5)


@pytest.mark.parametrize("folder", ["qwen3_vl"], indirect=True)
def test_added_tokens(folder, tmp_path):
    """With rows for them (resize_vocab); the tokens of pictures keep their ids."""
    keys = dict(add_tokens="It is,think", resize_vocab=True)
    begin = run_to_end(settings(folder, tmp_path / "begin") | keys | dict(max_steps=1, learning_rate=1e-30)).output_dir
    rows = rows_of(folder, tmp_path, **keys)
    assert all(max(row["input_ids"]) >= len(transformers.AutoTokenizer.from_pretrained(folder)) for row in rows)
    losses, _ = losses_of_transformers(begin, rows)
    shared = dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses")
    assert run_to_end(settings(folder, tmp_path / "run") | keys | shared, 2).logged("loss") == pytest.approx(losses, rel=1e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("num_ranks, keys", [
    (2, dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring", disable_gradient_checkpointing=True)),
    (4, dict(sequence_parallel_size=4, zero_stage=3, offload_activations="disk")),
    (2, dict(sequence_parallel_size=2, neat_packing=True, packing=True)),
    (2, dict(sequence_parallel_size=2, dataset="films")),
    (3, dict(sequence_parallel_size=3, stage="dpo", dataset="pairs", pref_share_prompt=True)),
    (2, dict(sequence_parallel_size=2, finetuning_type="lora", freeze_vision_tower=True,
             freeze_multi_modal_projector=True)),
    (2, dict(sequence_parallel_size=2, zero_stage=2, finetuning_type="lora", lora_target="all") | STAGES["kto"]),
    (3, dict(sequence_parallel_size=3, sequence_parallel_mode="ring", zero_stage=3) | STAGES["rm"]),
    (3, dict(sequence_parallel_size=3, sequence_parallel_mode="llama3") | STAGES["pt"]),
], ids=["ring", "zero3", "packed", "films", "dpo", "lora", "kto", "rm", "pt"])
def test_shared_work(num_ranks, keys, folder, tmp_path):
    """The same losses as on one rank, to the roundings of fp32, whatever of the activations is saved and where."""
    alone = {key: value for key, value in keys.items() if not key.startswith(("sequence", "zero", "offload", "disable"))}
    expected = run_to_end(settings(folder, tmp_path / "alone") | alone)
    shared = run_to_end(settings(folder, tmp_path / "shared") | keys, num_ranks, timeout=180)
    assert shared.logged("loss") == pytest.approx(expected.logged("loss"), rel=1e-5)


@needs_decoder
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_video_files(num_ranks, folder, tmp_path):
    """The same losses, to the bit, as on lists of the frames that PyAV decodes."""
    if folder.name == "gemma3":
        pytest.skip("Gemma 3 takes no videos")
    side = 2 * (16 if folder.name == "qwen3_vl" else 14)
    rows, frames = [], []
    for i in range(STEPS):
        film = write_video(tmp_path / f"{i}.mp4", ["libx264", "mpeg4"][i % 2], num_frames=10 + 3 * i, height=3 * side,
                           width=4 * side)
        names = []
        with av.open(film) as container:
            for k, frame in enumerate(container.decode(video=0)):
                names.append(f"{film}-{k}.png")
                frame.to_image().save(names[-1])
        rows.append(dict(messages=[dict(role="user", content="<video>What happens?"),
                                   dict(role="assistant", content=f"Nothing, {i}.")], videos=[film]))
        frames.append(rows[-1] | dict(videos=[names]))
    tags = dict(role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant")
    for name, content in (("files", rows), ("frames", frames)):
        add_dataset(tmp_path, name, content, formatting="sharegpt", columns=dict(messages="messages", videos="videos"),
                    tags=tags)
    keys = dict(dataset_dir=str(tmp_path), video_fps=10, sequence_parallel_size=num_ranks, video_max_pixels=5000)
    losses = [run_to_end(settings(folder, tmp_path / f"of-{name}") | keys | dict(dataset=name), num_ranks).logged("loss")
              for name in ("files", "frames")]
    assert losses[0] == losses[1]


@needs_decoder
def test_broken_frame(folder, tmp_path):
    """PyAV fails at the frame. Training names the record and the file; on_bad_row: skip leaves the record out."""
    if folder.name != "qwen2_vl":
        pytest.skip("the family has no part in it")
    films = [write_video(tmp_path / f"{i}.mp4", "libx264", height=84, width=112) for i in range(2)]
    with av.open(films[1]) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][12]
        begin, end = packet.pos, packet.pos + packet.size
    file = pathlib.Path(films[1])
    file.write_bytes(file.read_bytes()[:begin] + bytes(end - begin) + file.read_bytes()[end:])
    with pytest.raises(av.error.InvalidDataError), av.open(films[1]) as container:
        list(container.decode(video=0))
    rows = [dict(messages=[dict(role="user", content="<video>What?"), dict(role="assistant", content="It is.")], videos=[film])
            for film in films]
    add_dataset(tmp_path, "broken", rows, formatting="sharegpt", columns=dict(messages="messages", videos="videos"),
                tags=dict(role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant"))
    keys = dict(dataset="broken", dataset_dir=str(tmp_path), video_fps=10)
    stopped = Running(settings(folder, tmp_path / "stopped") | keys, 2).wait()
    # On simulated GPUs the other rank may see the connection end first.
    assert 1 in stopped.statuses and 0 not in stopped.statuses, stopped.text
    assert f"row 2: {films[1]}" in stopped.text, stopped.text
    skipped = run_to_end(settings(folder, tmp_path / "skipped") | keys | dict(on_bad_row="skip", max_steps=2))
    assert f"row 2: {films[1]}" in skipped.text and len(skipped.logged("loss")) == 2


def test_resume(folder, tmp_path):
    """The second half of a run, from its checkpoint, to the bit."""
    keys = dict(dataset="films", sequence_parallel_size=2, zero_stage=2, save_strategy="steps", save_steps=3)
    whole = run_to_end(settings(folder, tmp_path / "whole") | keys, 2)
    checkpoint = str(whole.output_dir / "checkpoint-3")
    rest = run_to_end(settings(folder, tmp_path / "rest") | keys | dict(resume_from_checkpoint=checkpoint), 2)
    assert rest.logged("loss") == whole.logged("loss")
    assert (rest.output_dir / "model.safetensors").read_bytes() == (whole.output_dir / "model.safetensors").read_bytes()


@pytest.mark.parametrize("folder", ["qwen2_vl"], indirect=True)
@pytest.mark.parametrize("keys", [dict(dataset="films"), STAGES["kto"]], ids=["films", "kto"])
def test_streamed(keys, folder, tmp_path):
    """The rows of the data set, to the bit, also after a resume; rows without pictures are among them."""
    keys = dict(save_strategy="steps", save_steps=3) | keys
    known = run_to_end(settings(folder, tmp_path / "known") | keys)
    keys |= dict(streaming=True, buffer_size=4)
    whole = run_to_end(settings(folder, tmp_path / "whole") | keys)
    assert whole.logged("loss") == known.logged("loss")
    on = dict(resume_from_checkpoint=str(whole.output_dir / "checkpoint-3"))
    rest = run_to_end(settings(folder, tmp_path / "rest") | keys | on)
    assert rest.logged("loss") == whole.logged("loss")
    shared = run_to_end(settings(folder, tmp_path / "shared") | keys | on | dict(sequence_parallel_size=2), 2)
    assert shared.logged("loss") == pytest.approx(known.logged("loss"), rel=1e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", METHODS)
def test_every_method(method, folder, tmp_path):
    """Pictures and videos across the cuts of each method."""
    keys = dict(sequence_parallel_size=4, sequence_parallel_mode=method, dataset="films", max_steps=3)
    if method in ("usp", "loongtrain"):
        keys["sequence_parallel_ulysses_degree"] = 2
    name = f"alone-{folder.name}"
    if name not in ALONE:
        ALONE[name] = run_to_end(settings(folder, tmp_path / "alone") | dict(dataset="films", max_steps=3)).logged("loss")
    shared = run_to_end(settings(folder, tmp_path / "shared") | keys, 4, timeout=180)
    assert shared.logged("loss") == pytest.approx(ALONE[name], rel=1e-5)


@pytest.mark.parametrize("keys", [
    dict(), dict(disable_gradient_checkpointing=True), dict(offload_activations=True), dict(freeze_vision_tower=True),
    dict(freeze_vision_tower=True, freeze_multi_modal_projector=True)],
    ids=["trained", "without checkpointing", "offloaded", "projector", "frozen"])
def test_memory_is_what_the_account_says(keys, folder, tmp_path):
    # Rows of about the same size: the account takes the next row, whose pixels are read ahead, to be as large.
    run = run_processes(settings(folder, tmp_path / "run") | dict(dataset="films") | keys)
    memory = json.loads((run.output_dir / "memory.json").read_text())
    measured, = memory["measured"]
    # The thread that reads ahead may be late, and hold no pixels at the peak.
    ahead, = [line["device"] for line in memory["account"] if line["name"] == "Pixels"]
    device = accounted(memory)
    assert 0.9 < device / measured["device"] and (device - ahead) / measured["device"] < 1.5, memory
    assert measured["host"] <= 1.1 * memory["host"] + 2**20, memory


def test_export_merges_the_towers_adapter(folder, tmp_path):
    keys = dict(finetuning_type="lora", lora_target="all", learning_rate=1e-2)
    run = run_to_end(settings(folder, tmp_path / "adapter") | keys | dict(max_steps=2))
    config = tmp_path / "export.yaml"
    config.write_text(json.dumps(dict(model_name_or_path=str(folder), adapter_name_or_path=str(run.output_dir),
                                      export_dir=str(tmp_path / "merged"), template=template_of(folder.name))))
    subprocess.run([PROGRAM, "export", config], check=True, capture_output=True)
    base = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(base, run.output_dir).merge_and_unload()
    merged, info = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    untouched = dict(transformers.AutoModelForImageTextToText.from_pretrained(folder).named_parameters())
    adapted = 0
    for (key, ours), (_, theirs) in zip(merged.named_parameters(), expected.named_parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        adapted += ("visual" in key or "vision_tower" in key) and not torch.equal(ours, untouched[key])
    assert adapted > 0


def changed(folder, place, **changes):
    """A copy of the model, with other values in its files."""
    shutil.copytree(folder, place)
    for name, values in changes.items():
        file = place / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return place


def test_refusals(folder, data, tmp_path):
    def says(model, **keys):
        run = Running(settings(folder, tmp_path / "refused") | dict(model_name_or_path=str(model)) | keys).wait()
        assert run.status == 1, run.text
        return run.text

    text = says(folder, dataset="chats", dataset_dir=data)
    assert "freeze_vision_tower: false" in text and "Remove the key" in text
    if folder.name == "gemma3":
        half = dict(height=GEMMA_SIDE // 2, width=GEMMA_SIDE // 2)
        text = says(changed(folder, tmp_path / "side", preprocessor_config=dict(size=half)))
        assert "the vision tower in config.json has" in text
        text = says(changed(folder, tmp_path / "crops", preprocessor_config=dict(do_pan_and_scan=True)))
        assert '"do_pan_and_scan" is true' in text
    else:
        text = says(changed(folder, tmp_path / "patch", preprocessor_config=dict(patch_size=8),
                            video_preprocessor_config=dict(patch_size=8)))
        assert "the vision tower in config.json has" in text
        text = says(changed(folder, tmp_path / "mean", preprocessor_config=dict(image_mean=[0.5, 0.5, 0.5]),
                            video_preprocessor_config=dict(image_mean=[0.1, 0.5, 0.5])))
        assert "Videos with other pixels than pictures are not supported" in text
    whole = (folder / "0.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[:len(whole) // 2])
    tags = dict(role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant")
    rows = [dict(messages=[dict(role="user", content="<image>What?"), dict(role="assistant", content="It is.")],
                 images=[str(path)]) for path in (folder / "1.png", tmp_path / "cut.png")]
    add_dataset(tmp_path, "cut", rows, formatting="sharegpt", columns=dict(messages="messages", images="images"), tags=tags)
    assert "row 2" in (text := says(folder, dataset="cut", dataset_dir=str(tmp_path))) and "cut.png" in text
    skipped = run_to_end(settings(folder, tmp_path / "skipped") |
                         dict(dataset="cut", dataset_dir=str(tmp_path), on_bad_row="skip", max_steps=1))
    assert "cut.png" in skipped.text
