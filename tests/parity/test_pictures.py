"""Rows with pictures and videos: tokens and labels against LLaMA-Factory's own code, positions against get_rope_index of
transformers' models. Sizes of videos are by transformers' smart_resize, since its video processors want torchvision."""

import functools
import itertools
import json
import random
import re
import types

import llamafactory_data
import pytest
import torch
import transformers
from picture_models import (FAMILIES, GEMMA_COUNT, GEMMA_TEMPLATE, GEMMA_TEXT, PADS, GemmaProcessor, Processor, folder_of,
                            write_folder)
from PIL import Image
from test_data import TAGS, encode
from test_llamafactory_templates import encoder, split

CASES = [(family, template) for family, (templates, *_) in FAMILIES.items() for template in templates]
GEMMA = ("gemma3", "gemma3")
ENTRY = dict(formatting="sharegpt", columns=dict(messages="messages", images="images", videos="videos"), tags=TAGS)


@pytest.fixture(scope="module")
def theirs():
    template, supervised, pairwise = llamafactory_data.load()
    return template, supervised, pairwise, llamafactory_data.load_pictures()


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    """Pictures of many sizes, and videos of 1 to 9 frames."""
    place, rng = tmp_path_factory.mktemp("media"), random.Random(3)
    sizes = [(64, 64), (28, 28), (20, 200), (1, 1), (300, 7), (1200, 900), (33, 47), (640, 480), (2000, 30), (5, 3000)]
    sizes += [(rng.randint(10, 700), rng.randint(10, 700)) for _ in range(15)]
    names = []
    for i, size in enumerate(sizes):
        names.append(f"{i}.png")
        Image.new("RGB", size, (i, 0, 0)).save(place / names[-1])
    videos = []
    for i, num_frames in enumerate([1, 2, 3, 4, 5, 8, 9, 2, 7]):
        frames = [f"video{i}_{k}.png" for k in range(num_frames)]
        size = (rng.randint(30, 500), rng.randint(30, 500))
        for k, name in enumerate(frames):
            Image.new("RGB", size, (0, i, k)).save(place / name)
        videos.append(frames)
    return place, names, videos


def conversations(media, number=40, with_videos=True):
    """Of 0 to 6 pictures each, in questions and answers; every fourth with videos too."""
    _, names, videos = media
    rng, rows = random.Random(11), []
    words = ["What is it? ", "Look:", "\nand ", "here", " 1 < 2 ", "", "One word. "]
    for i in range(number):
        tags = ["<image>"] * (i % 7)
        if with_videos and i % 4 == 0:
            tags += ["<video>"] * rng.randint(1, 3)
        rng.shuffle(tags)
        turns = rng.randint(1, 4)
        messages = [{"role": role, "content": rng.choice(words[:5])} for _ in range(turns) for role in ("user", "assistant")]
        for tag in tags:
            # Mostly in questions.
            message = messages[rng.randrange(turns) * 2 + (rng.random() < 0.15)]
            message["content"] += rng.choice(words) + tag + rng.choice(words)
        order = [tag for message in messages for tag in re.findall("<image>|<video>", message["content"])]
        if i % 5 == 0:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        rows.append(dict(messages=messages, images=[rng.choice(names) for tag in order if tag == "<image>"],
                         videos=[rng.choice(videos) for tag in order if tag == "<video>"]))
    return rows


def paths(place, row):
    return ([str(place / name) for name in row["images"]],
            [[str(place / name) for name in frames] for frames in row["videos"]])


class OneByOne:
    """LLaMA-Factory's texts of pictures. It is asked for each tag alone: for qwen3_vl it takes the number of frames from the
    row's first video, and their times from the video whose number is the message's."""

    def __init__(self, plugin):
        self.plugin = plugin

    def process_messages(self, messages, images, videos, audios, processor):
        images, videos = iter(images), iter(videos)

        def text(tag):
            files = ([next(images)], []) if tag[0] == "<image>" else ([], [next(videos)])
            return self.plugin.process_messages([{"content": tag[0]}], *files, [], processor)[0]["content"]

        return [dict(message, content=re.sub("<image>|<video>", text, message["content"])) for message in messages]

    def process_token_ids(self, ids, labels, *_):
        return ids, labels


def encoder_with_pictures(theirs, kind, folder, family, template, processor, **keys):
    templates, supervised, pairwise, plugins = theirs
    module = {"SupervisedDatasetProcessor": supervised, "PairwiseDatasetProcessor": pairwise}[kind]
    encodes = encoder((templates, module), kind, folder, template, **keys)
    encodes.template.mm_plugin = plugin_of(plugins, template)
    encodes.processor = processor
    return encodes


def plugin_of(plugins, template):
    if template == "gemma3":
        return OneByOne(plugins.get_mm_plugin(template, image_token="<image_soft_token>"))
    name = "qwen2_vl" if template == "qwen2_vl" else "qwen3_vl"
    return OneByOne(plugins.get_mm_plugin(name, image_token=PADS["<image>"], video_token=PADS["<video>"]))


def processor_of(family, **keys):
    return GemmaProcessor(**keys) if family == "gemma3" else Processor(family, **keys)


def tokens_of_pictures(config):
    """Ids that stand for pictures and for videos, and that of the token behind them."""
    if config["model_type"] == "gemma3":
        return config["image_token_index"], None, config["eoi_token_index"]
    return config["image_token_id"], config["video_token_id"], config["vision_end_token_id"]


def rope_index(family, folder, ids, document, fps=2.0):
    """Positions by transformers, from the grids of the document's pictures. `fps`: of all videos, or of each."""
    model = FAMILIES[family][1]
    config = json.loads((folder / "config.json").read_text())
    vision = types.SimpleNamespace(**config["vision_config"])
    stand_in = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    stand_in.get_vision_position_ids = functools.partial(model.get_vision_position_ids, stand_in)
    tokens = torch.tensor([ids])
    kinds = (tokens == config["image_token_id"]) * 1 + (tokens == config["video_token_id"]) * 2
    grids = [[picture["grid"] for picture in document["pictures"] if picture["is_video"] == is_video]
             for is_video in (False, True)]
    given = dict(zip(("image_grid_thw", "video_grid_thw"), [torch.tensor(each) if each else None for each in grids]))
    if family == "qwen2_5_vl" and grids[1]:
        given["second_per_grid_ts"] = [2 / each for each in (fps if isinstance(fps, list) else [fps] * len(grids[1]))]
    return model.get_rope_index(stand_in, tokens, kinds, **given)[0][:, 0].flatten().tolist()


def check_document(family, folder, document, fps=2.0):
    """Features follow each other, at the tokens that stand for pictures; positions are transformers'."""
    config = json.loads((folder / "config.json").read_text())
    pads = tokens_of_pictures(config)[:2]
    num_features = sum(picture["num_features"] for picture in document.get("pictures", []))
    assert [feature for feature in document["features"] if feature >= 0] == list(range(num_features))
    for token, feature in zip(document["input_ids"], document["features"], strict=True):
        assert (token in pads) == (feature >= 0)
    if num_features == 0:
        assert "positions" not in document and "pictures" not in document
        return
    if family == "gemma3":
        assert "positions" not in document
        assert all(picture["num_features"] == GEMMA_COUNT for picture in document["pictures"])
        return
    assert document["positions"] == rope_index(family, folder, document["input_ids"], document, fps)


@pytest.mark.parametrize("family,template", [*CASES, GEMMA])
def test_answers(family, template, theirs, media, tmp_path_factory, tmp_path):
    place, *_ = media
    folder, rows = folder_of(tmp_path_factory, family), conversations(media, with_videos=family != "gemma3")
    for keys in ({}, dict(video_fps=0.7, image_max_pixels=40000, video_max_pixels=20000, video_min_pixels=3000,
                          image_min_pixels=20000)):
        encodes = encoder_with_pictures(theirs, "SupervisedDatasetProcessor", folder, family, template,
                                        processor_of(family, **keys))
        ours = encode(folder, tmp_path, rows, ENTRY, template=template, media_dir=str(place), **keys)
        for row, example in zip(rows, ours, strict=True):
            system, messages = split([dict(message) for message in row["messages"]])
            ids, labels = encodes._encode_data_example(messages[:-1], messages[-1:], system, None, *paths(place, row), [])
            document, = example["documents"]
            assert (document["input_ids"], document["labels"]) == (ids, labels), row
            files = [picture["files"] for picture in document.get("pictures", []) if not picture["is_video"]]
            assert files == [[str(place / name)] for name in row["images"]]
            check_document(family, folder, document, keys.get("video_fps", 2.0))


@pytest.mark.parametrize("family,template", [*CASES[:3], GEMMA])
def test_truncation(family, template, theirs, media, tmp_path_factory, tmp_path):
    """A row is left out where a part of a picture would stay; in the others, pictures may be missing."""
    place, *_ = media
    folder, rows = folder_of(tmp_path_factory, family), conversations(media, with_videos=False)
    config, num_good = json.loads((folder / "config.json").read_text()), 0

    def rows_cut_to(cutoff_len):
        encodes = encoder_with_pictures(theirs, "SupervisedDatasetProcessor", folder, family, template,
                                        processor_of(family), cutoff_len=cutoff_len)
        for row in rows:
            system, messages = split([dict(message) for message in row["messages"]])
            yield encodes._encode_data_example(messages[:-1], messages[-1:], system, None, *paths(place, row), [])

    def pictures_in(ids):
        """Tokens of each picture, and the token behind it."""
        image, *_ = tokens_of_pictures(config)
        runs = [list(run) for _, run in itertools.groupby(ids, lambda token: token == image)]
        return [(len(run), after[0]) for run, after in itertools.pairwise(runs + [[None]]) if run[0] == image]

    whole = [{size for size, _ in pictures_in(ids)} for ids, _ in rows_cut_to(1 << 20)]
    for cutoff_len in (90, 400, 900):
        ours = encode(folder, tmp_path, rows, ENTRY, template=template, media_dir=str(place), cutoff_len=cutoff_len,
                      on_bad_row="skip")
        documents = [example["documents"][0] for example in ours]
        left = iter([(document["input_ids"], document["labels"]) for document in documents] + [None])
        next_of_ours = next(left)
        for expected, sizes in zip(rows_cut_to(cutoff_len), whole, strict=True):
            cut = [size for size, after in pictures_in(expected[0]) if after != tokens_of_pictures(config)[2]]
            if next_of_ours == expected:
                assert set(cut) <= sizes, "a part of a picture"
                next_of_ours = next(left)
                num_good += 1
            else:
                assert cut, "a row without a cut picture is missing"
        assert next_of_ours is None
        for document in documents:
            check_document(family, folder, document)
    assert num_good > 20


@pytest.mark.parametrize("family,template", [*CASES[::2], GEMMA])
def test_pairs(family, template, theirs, media, tmp_path_factory, tmp_path):
    place, *_ = media
    folder, rows = folder_of(tmp_path_factory, family), conversations(media, with_videos=family != "gemma3")
    encodes = encoder_with_pictures(theirs, "PairwiseDatasetProcessor", folder, family, template, processor_of(family))
    entry = dict(ENTRY, ranking=True, columns=ENTRY["columns"] | dict(chosen="chosen", rejected="rejected"))
    pairs = []
    for row in rows:
        *messages, chosen = row["messages"]
        tags = "".join(re.findall("<image>|<video>", chosen["content"]))
        pairs.append(dict(row, messages=messages, chosen=chosen, rejected=dict(role="assistant", content="No." + tags)))
    ours = encode(folder, tmp_path, pairs, entry, template=template, media_dir=str(place), stage="dpo")
    for row, example in zip(pairs, ours, strict=True):
        system, messages = split([dict(message) for message in row["messages"]])
        theirs_ids = encodes._encode_data_example(messages, [row["chosen"], row["rejected"]], system, None,
                                                  *paths(place, row), [])
        documents = example["documents"]
        assert tuple(documents[i][key] for i in (0, 1) for key in ("input_ids", "labels")) == tuple(theirs_ids)
        for document in documents:
            check_document(family, folder, document)


@pytest.mark.parametrize("keys", [dict(packing=True), dict(neat_packing=True)])
def test_packing(keys, media, tmp_path_factory, tmp_path):
    place, *_ = media
    family = "qwen2_vl"
    folder, rows = folder_of(tmp_path_factory, family), conversations(media)
    given = dict(template="qwen2_vl", media_dir=str(place), cutoff_len=6000, image_max_pixels=100000)
    alone = [example["documents"][0] for example in encode(folder, tmp_path, rows, ENTRY, **given)]
    packed = encode(folder, tmp_path, rows, ENTRY, **given, **keys)
    assert len(packed) < len(alone) / 2
    whole = {tuple(document["input_ids"]): document for document in alone}
    num_found = 0
    for example in packed:
        for document in example["documents"]:
            num_features = sum(picture["num_features"] for picture in document.get("pictures", []))
            assert [feature for feature in document["features"] if feature >= 0] == list(range(num_features))
            if "neat_packing" in keys:
                assert document == whole[tuple(document["input_ids"])]
                num_found += 1
    files = sorted(picture["files"] for document in alone for picture in document.get("pictures", []))
    assert files == sorted(picture["files"] for example in packed for document in example["documents"]
                           for picture in document.get("pictures", []))
    assert num_found in (0, len(alone))


OWN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_own_template(family, theirs, media, tmp_path):
    """The rendering of transformers, with LLaMA-Factory's texts of pictures, tokenized as a whole."""
    place, *_ = media
    folder = tmp_path / "model"
    write_folder(folder, family)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = OWN
    tokenizer.save_pretrained(folder)
    plugin = OneByOne(theirs[3].get_mm_plugin(family, image_token=PADS["<image>"], video_token=PADS["<video>"]))
    rows = conversations(media)
    ours = encode(folder, tmp_path, rows, ENTRY, media_dir=str(place))
    for row, example in zip(rows, ours, strict=True):
        messages = plugin.process_messages(row["messages"], *paths(place, row), [], Processor(family))
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
        document, = example["documents"]
        assert document["input_ids"] == ids, row
        trained = [token for token, label in zip(ids, document["labels"]) if label != -100]
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        assert tokenizer.decode(trained) == "".join(f"{answer}<|im_end|>\n" for answer in answers)
        check_document(family, folder, document)


def in_parts(content):
    """A message's content as transformers' templates take it."""
    parts = [dict(type="image") if part == "<image>" else dict(type="text", text=part)
             for part in re.split("(<image>)", content) if part]
    return parts if "<image>" in content else content


def test_own_template_of_gemma(media, tmp_path):
    """The rendering of transformers, in which its processor replaces what stands for a picture."""
    place, *_ = media
    folder = tmp_path / "model"
    write_folder(folder, "gemma3")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = GEMMA_TEMPLATE
    tokenizer.save_pretrained(folder)
    rows = conversations(media, with_videos=False)
    ours = encode(folder, tmp_path, rows, ENTRY, media_dir=str(place))
    for row, example in zip(rows, ours, strict=True):
        messages = [message | dict(content=in_parts(message["content"])) for message in row["messages"]]
        text = tokenizer.apply_chat_template(messages, tokenize=False).replace("<start_of_image>", GEMMA_TEXT)
        document, = example["documents"]
        assert document["input_ids"] == tokenizer.encode(text, add_special_tokens=False), row
        assert any(label != -100 for label in document["labels"])
        check_document("gemma3", folder, document)


def answered_with_tags(media, tags):
    """Conversations of one turn with these tags in the question."""
    place, names, videos = media
    rng = random.Random(2)
    return [dict(messages=[dict(role="user", content=f"{i}: {tags} which?"), dict(role="assistant", content=f"number {i}")],
                 images=[rng.choice(names) for _ in range(tags.count("<image>"))],
                 videos=[rng.choice(videos) for _ in range(tags.count("<video>"))], good=i % 2 == 0) for i in range(6)]


def test_unpaired(media, tmp_path_factory, tmp_path):
    """kto: the answer, and the row before's answer, both to the question with its pictures."""
    place, *_ = media
    folder, rows = folder_of(tmp_path_factory, "qwen3_vl"), answered_with_tags(media, "<image><video><image>")
    keys = dict(template="qwen3_vl_nothink", media_dir=str(place))
    alone = [example["documents"][0] for example in encode(folder, tmp_path, rows, ENTRY, **keys)]
    entry = dict(ENTRY, columns=ENTRY["columns"] | dict(kto_tag="good"))
    for i, example in enumerate(encode(folder, tmp_path, rows, entry, stage="kto", **keys)):
        own, mismatched = example["documents"]
        assert own == alone[i]
        assert mismatched["pictures"] == own["pictures"]
        answer = [token for token in mismatched["labels"] if token != -100]
        assert answer == [token for token in alone[i - 1]["labels"] if token != -100]
        check_document("qwen3_vl", folder, mismatched)


@pytest.mark.parametrize("family,template", [("qwen2_vl", None), ("qwen3_vl", "qwen3_vl")])
def test_texts(family, template, theirs, media, tmp_path_factory, tmp_path):
    """pt: every token is trained, and tags become LLaMA-Factory's texts of pictures."""
    place, *_ = media
    folder, rows = folder_of(tmp_path_factory, family), conversations(media)
    texts = [dict(row, text="".join(message["content"] for message in row["messages"][-2:])) for row in rows]
    for text in texts:
        tags = re.findall("<image>|<video>", text["text"])
        for tag, column in (("<image>", "images"), ("<video>", "videos")):
            text[column] = text[column][:tags.count(tag)]
    keys = dict(stage="pt", packing=False, media_dir=str(place)) | (dict(template=template) if template else {})
    ours = encode(folder, tmp_path, texts, dict(columns=dict(prompt="text", images="images", videos="videos")), **keys)
    plugin = OneByOne(theirs[3].get_mm_plugin(family, image_token=PADS["<image>"], video_token=PADS["<video>"]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, example in zip(texts, ours, strict=True):
        message, = plugin.process_messages([dict(content=text["text"])], *paths(place, text), [], Processor(family))
        document, = example["documents"]
        assert document["input_ids"] == document["labels"] == tokenizer.encode(message["content"] + "<|im_end|>")
        check_document(family, folder, document)


REFUSALS = [
    ("qwen2_vl", "<image>", dict(template="qwen"), "template: qwen takes none. Name one that does (qwen3_5, "),
    ("qwen2", "<image>", dict(template="qwen2_vl"), "the model takes none"),
    ("qwen3_vl", "<video>", dict(template="qwen2_vl"), "writes a video in one piece, and the model takes it frame by frame"),
    ("qwen2_vl", "<image>", dict(template="qwen2_vl", cutoff_len=120), "cutoff_len 120 cuts picture 1"),
    ("qwen2_vl", "<image><|image_pad|>", dict(template="qwen2_vl"), "the token that stands for pictures"),
    ("gemma3", "<image><start_of_image>", dict(template="gemma3"), "the token that stands for pictures"),
    ("gemma3", "<video>", dict(template="gemma3"), "the row has a video, and the model takes none"),
    ("gemma3", "<image>", dict(template="gemma3", cutoff_len=20), "cutoff_len 20 cuts picture 1"),
]


@pytest.mark.parametrize("family,tags,keys,said", REFUSALS)
def test_refusals(family, tags, keys, said, media, tmp_path):
    place, *_ = media
    folder = tmp_path / "model"
    write_folder(folder, "qwen2_vl" if family == "qwen2" else family)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | dict(model_type=family)))
    with pytest.raises(AssertionError, match=re.escape(said)):
        encode(folder, tmp_path, answered_with_tags(media, tags), ENTRY, media_dir=str(place), **keys)
