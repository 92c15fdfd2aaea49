"""Rows with pictures: a checkpoint of Qwen2-VL's family, the pictures' files, and the work that they ask for."""

import json
import random
import subprocess
import sys
from pathlib import Path

from speed.workload import (D_MODEL, SPECIAL, TOKENIZER_SIZE, Case, _words, block_parameters, model_config,
                            model_flops, train_tokenizer)

# The tower's width has to the text's the ratio of Qwen2-VL-2B, its heads that size (64 here, 80 there).
TOWER_DIM, TOWER_LAYERS, TOWER_HEADS, MLP_RATIO = 448, 8, 7, 4
PATCH, MERGE, TEMPORAL = 14, 2, 2
SIDE = 672  # pixels: 48 x 48 patches, 576 tokens
PICTURES = 4  # of a row
TOKENS_OF_PICTURE = (SIDE // PATCH // MERGE) ** 2
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
HEAD = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
MIDDLE, END = "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n"


def tower_flops(trained: bool) -> float:
    """FLOPs of a row's pictures, forward and backward, by the rules of workload.model_flops; of a tower that does not
    train only the forward."""
    patches, dim = (SIDE // PATCH) ** 2, TOWER_DIM
    embedding = 2.0 * TEMPORAL * 3 * PATCH * PATCH * dim
    blocks = TOWER_LAYERS * (2.0 * (4 + 2 * MLP_RATIO) * dim * dim + 4.0 * dim * patches)
    merged = dim * MERGE * MERGE
    merger = 2.0 * merged * (merged + D_MODEL) / MERGE**2
    return (3 if trained else 1) * PICTURES * patches * (embedding + blocks + merger)


def flops(case: Case, labels: int, trained: bool) -> dict[str, float]:
    return model_flops(case, labels) | {"tower": tower_flops(trained)}


def make_checkpoint(folder: Path) -> Path:
    """A folder with random weights (seeded), config, tokenizer and processor; kept between calls."""
    done = folder / ".done"
    if done.exists():
        return folder
    print(f"== Making the checkpoint {folder}", flush=True)
    train_tokenizer(folder, SPECIAL + VISION)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = dict(zip(("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id"),
                   map(tokenizer.token_to_id, VISION)))
    text = model_config(TOKENIZER_SIZE) | {
        "model_type": "qwen2_vl_text",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}}
    vision = {"depth": TOWER_LAYERS, "embed_dim": TOWER_DIM, "hidden_size": D_MODEL, "mlp_ratio": MLP_RATIO,
              "num_heads": TOWER_HEADS, "patch_size": PATCH, "spatial_merge_size": MERGE,
              "temporal_patch_size": TEMPORAL}
    (folder / "config.json").write_text(json.dumps(
        {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "text_config": text,
         "vision_config": vision, "tie_word_embeddings": True, "torch_dtype": "float32"} | ids))
    (folder / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": PATCH, "merge_size": MERGE,
         "temporal_patch_size": TEMPORAL, "size": {"shortest_edge": 3136, "longest_edge": 12845056}}))
    subprocess.check_call([sys.executable, "-c", (
        "import sys, torch\n"
        "from transformers import AutoConfig, AutoModelForImageTextToText\n"
        "torch.manual_seed(0)\n"
        "config = AutoConfig.from_pretrained(sys.argv[1])\n"
        "AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(sys.argv[1])\n"
    ), str(folder)])
    done.touch()
    return folder


def make_rows(folder: Path, checkpoint: Path, case: Case, count: int) -> int:
    """Writes `count` rows of PICTURES pictures as a data set in the sharegpt format, and as ids and labels
    (tokens.json). Returns the labels of a row."""
    from PIL import Image
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    start, end, pad, _ = VISION
    words, chance = _words(tokenizer), random.Random(case.tokens)

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    def text(num_tokens: int) -> str:
        first = chance.choice(words)
        return " ".join([first] + [chance.choice(words) for _ in range(num_tokens - len(ids(first)))])

    folder.mkdir(parents=True, exist_ok=True)
    of_pictures = PICTURES * (TOKENS_OF_PICTURE + 2)
    labels = round((case.tokens - of_pictures) * case.answer_share)
    num_prompt = case.tokens - of_pictures - labels - len(ids(HEAD)) - len(ids(MIDDLE))
    dataset, tokens = [], []
    for row in range(count):
        files = []
        for k in range(PICTURES):
            # Large shapes with noise: files of the size of a photograph.
            small = Image.frombytes("RGB", (24, 24), chance.randbytes(24 * 24 * 3)).resize((SIDE, SIDE))
            noise = Image.frombytes("RGB", (SIDE, SIDE), chance.randbytes(SIDE * SIDE * 3))
            files.append(str(folder / f"{row}-{k}.jpg"))
            Image.blend(small, noise, 0.1).save(files[-1], quality=90)
        prompt, answer = text(num_prompt), text(labels - len(ids(END)))
        question = ids(HEAD + (start + pad * TOKENS_OF_PICTURE + end) * PICTURES + prompt + MIDDLE)
        reply = ids(answer + END)
        dataset.append({"messages": [{"role": "user", "content": "<image>" * PICTURES + prompt},
                                     {"role": "assistant", "content": answer}], "images": files})
        tokens.append({"input_ids": question + reply, "labels": [-100] * len(question) + reply, "images": files})
        assert len(tokens[-1]["input_ids"]) == case.tokens, len(tokens[-1]["input_ids"])
    (folder / "rows.json").write_text(json.dumps(dataset))
    (folder / "tokens.json").write_text(json.dumps(tokens))
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    columns = {"messages": "messages", "images": "images"}
    (folder / "dataset_info.json").write_text(json.dumps(
        {"rows": {"file_name": "rows.json", "formatting": "sharegpt", "columns": columns, "tags": tags}}))
    return labels
