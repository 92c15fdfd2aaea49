"""Folders of small models that take pictures, and what LLaMA-Factory asks of transformers' processors."""

import ast
import functools
import json
import math
import pathlib
import types

import torch
import transformers
from conftest import write_tokenizer
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as pictures_of_qwen2
from transformers.models.qwen3_vl import processing_qwen3_vl

PADS = {"<image>": "<|image_pad|>", "<video>": "<|video_pad|>"}
TOKENS = ["<|vision_start|>", "<|vision_end|>", *PADS.values(), "<think>", "</think>"]
# model_type: its templates, the class with get_rope_index, pixels of a patch's side, limits of pictures and of videos
FAMILIES = {
    "qwen2_vl": (["qwen2_vl"], transformers.Qwen2VLModel, 14, (3136, 12845056), (3136, 12845056)),
    "qwen2_5_vl": (["qwen2_vl"], transformers.Qwen2_5_VLModel, 14, (3136, 401408), (3136, 50176)),
    "qwen3_vl": (["qwen3_vl", "qwen3_vl_nothink"], transformers.Qwen3VLModel, 16, (65536, 16777216), (4096, 25165824)),
    "qwen3_5": (["qwen3_5", "qwen3_5_nothink"], transformers.Qwen3_5Model, 16, (65536, 16777216), (4096, 300000)),
}
TOKENS_PER_SECOND = 2
# Gemma 3: pictures of one size, in few patches, and no videos.
GEMMA_TOKENS = dict(boi_token_index="<start_of_image>", image_token_index="<image_soft_token>", eoi_token_index="<end_of_image>")
GEMMA_SIDE, GEMMA_PATCH, GEMMA_COUNT = 112, 14, 16
GEMMA_TEXT = "\n\n<start_of_image>" + "<image_soft_token>" * GEMMA_COUNT + "<end_of_image>\n\n"
# As it is published.
GEMMA_TEMPLATE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""


def write_gemma(place):
    tokenizer = write_tokenizer(place)
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    tokenizer.add_tokens([transformers.AddedToken(token, special=True) for token in
                          [*GEMMA_TOKENS.values(), "<start_of_turn>", "<end_of_turn>"]], special_tokens=True)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(place)
    (place / "chat_template.jinja").unlink(missing_ok=True)
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in GEMMA_TOKENS.items()}
    (place / "config.json").write_text(json.dumps(dict(
        model_type="gemma3", mm_tokens_per_image=GEMMA_COUNT, vision_config=dict(patch_size=GEMMA_PATCH)) | ids))
    (place / "preprocessor_config.json").write_text(json.dumps(dict(
        image_processor_type="Gemma3ImageProcessor", image_mean=[0.5] * 3, image_std=[0.5] * 3,
        size=dict(height=GEMMA_SIDE, width=GEMMA_SIDE))))


def write_folder(place, family):
    if family == "gemma3":
        write_gemma(place)
        return
    _, _, patch, (least, most), (least_video, most_video) = FAMILIES[family]
    tokenizer = write_tokenizer(place)
    tokenizer.add_tokens([transformers.AddedToken(token, special=True) for token in TOKENS], special_tokens=True)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(place)
    (place / "chat_template.jinja").unlink(missing_ok=True)
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in (
        ("image_token_id", "<|image_pad|>"), ("video_token_id", "<|video_pad|>"),
        ("vision_start_token_id", "<|vision_start|>"), ("vision_end_token_id", "<|vision_end|>"))}
    vision = dict(spatial_merge_size=2, tokens_per_second=TOKENS_PER_SECOND)
    (place / "config.json").write_text(json.dumps(dict(model_type=family, vision_config=vision) | ids))
    shared = dict(patch_size=patch, temporal_patch_size=2, merge_size=2)
    if patch == 16:
        shared |= dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)
    (place / "preprocessor_config.json").write_text(json.dumps(
        shared | dict(image_processor_type=image_processor_type(family),
                      size=dict(shortest_edge=least, longest_edge=most))))
    (place / "video_preprocessor_config.json").write_text(json.dumps(
        shared | dict(size=dict(shortest_edge=least_video, longest_edge=most_video))))


def image_processor_type(family):
    return "Qwen2VLImageProcessorFast" if family.startswith("qwen3") else "Qwen2VLImageProcessor"


FOLDERS = {}


def folder_of(factory, family):
    if family not in FOLDERS:
        FOLDERS[family] = factory.mktemp("pictures") / family
        write_folder(FOLDERS[family], family)
    return FOLDERS[family]


@functools.cache
def size_of_qwen3_video():
    """smart_resize of transformers' file, whose module asks for torchvision."""
    file = pathlib.Path(transformers.__file__).parent / "models" / "qwen3_vl" / "video_processing_qwen3_vl.py"
    function, = (part for part in ast.parse(file.read_text()).body if getattr(part, "name", "") == "smart_resize")
    names = {"math": math}
    exec(compile(ast.Module([function], []), file, "exec"), names)
    return names["smart_resize"]


class VideoProcessor:
    """The sizes of transformers' processors."""

    def __init__(self, family):
        _, _, self.patch_size, _, (self.least, self.most) = FAMILIES[family]
        self.temporal_patch_size = self.merge_size = 2
        self.counts_frames = self.patch_size == 16

    def __call__(self, videos, video_metadata=None, **_):
        grids, limits = [], dict(factor=self.patch_size * 2, min_pixels=self.least, max_pixels=self.most)
        for frames in videos:
            (width, height), = {frame.size for frame in frames}
            if self.counts_frames:
                size = size_of_qwen3_video()(len(frames), height, width, **limits)
            else:
                size = pictures_of_qwen2.smart_resize(height, width, **limits)
            grids.append([-(-len(frames) // 2), size[0] // self.patch_size, size[1] // self.patch_size])
        metadata = [types.SimpleNamespace(**of_video) for of_video in video_metadata or []]
        return {"video_grid_thw": torch.tensor(grids), "video_metadata": metadata}


class GemmaProcessor:
    """The parts of transformers' processor that mm_plugin.py reads."""

    image_processor, boi_token, full_image_sequence = object(), "<start_of_image>", GEMMA_TEXT

    def __init__(self, **_):
        pass


class Processor:
    """The parts of transformers' processors that mm_plugin.py reads."""

    def __init__(self, family, **keys):
        _, _, patch, (least, most), _ = FAMILIES[family]
        self.image_processor = pictures_of_qwen2.Qwen2VLImageProcessorPil(
            patch_size=patch, merge_size=2, size=dict(shortest_edge=least, longest_edge=most))
        self.video_processor = VideoProcessor(family)
        self.model_input_names = ["second_per_grid_ts"] if family == "qwen2_5_vl" else []
        for key, value in keys.items():
            setattr(self, key, value)

    def _calculate_timestamps(self, indices, *numbers):
        return processing_qwen3_vl.Qwen3VLProcessor._calculate_timestamps(self, list(indices), *numbers)


TEXT = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=2048)
ROPE = dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3])
TOWER = dict(depth=2, hidden_size=32, intermediate_size=40, num_heads=2, out_hidden_size=64)
MODELS = {
    "qwen2_vl": (transformers.Qwen2VLConfig, 14, TEXT | dict(rope_parameters=ROPE),
                 dict(depth=2, embed_dim=32, hidden_size=64, mlp_ratio=2, num_heads=2, patch_size=14)),
    "qwen3_vl": (transformers.Qwen3VLConfig, 16,
                 TEXT | dict(head_dim=16, rope_parameters=ROPE | dict(mrope_section=[4, 2, 2], mrope_interleaved=True)),
                 TOWER | dict(patch_size=16, num_position_embeddings=25, deepstack_visual_indexes=[0])),
    # A window that is shorter than a picture, and none.
    "gemma3": (transformers.Gemma3Config, 14,
               TEXT | dict(head_dim=16, sliding_window=10, layer_types=["sliding_attention", "full_attention"]),
               dict(num_hidden_layers=2, hidden_size=32, intermediate_size=40, num_attention_heads=2, patch_size=14,
                    image_size=GEMMA_SIDE, vision_use_head=False)),
}
# Families with the layouts above, but with another tower's attention or another language model.
OTHERS = {
    "qwen2_5_vl": (transformers.Qwen2_5_VLConfig, 14, TEXT | dict(rope_parameters=ROPE),
                   TOWER | dict(patch_size=14, window_size=112, fullatt_block_indexes=[1])),
    "qwen3_5": (transformers.Qwen3_5Config, 16,
                TEXT | dict(num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                            linear_key_head_dim=16, linear_value_head_dim=8,
                            rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5,
                                                 mrope_section=[2, 1, 1], mrope_interleaved=True)),
                TOWER | dict(patch_size=16, num_position_embeddings=25)),
}


def patch_of(name):
    return (MODELS | OTHERS)[name][1]


def template_of(name):
    return FAMILIES[name][0][0] if name in FAMILIES else name


def write_model_with_pictures(place, name, std, tied_head=None):
    """A small random model, with a tokenizer and the processor's files. `tied_head`: None: as the family's models."""
    place.mkdir()
    write_folder(place, name)
    kind, _, text, vision = (MODELS | OTHERS)[name]
    tokens = {key: value for key, value in json.loads((place / "config.json").read_text()).items()
              if key.endswith(("_id", "_token_index", "_per_image"))}
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    tied = {} if tied_head is None else dict(tie_word_embeddings=tied_head)
    config = kind(text_config=text | dict(vocab_size=len(tokenizer)) | tied, vision_config=vision, **tokens, **tied)
    torch.manual_seed(3)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=std)
    model.save_pretrained(place)
