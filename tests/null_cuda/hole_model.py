"""Folders of large models whose weights are a hole: a file that takes no disk and reads as zeros."""

import json

from conftest import write_tokenizer
from hybrid_models import HYBRIDS, hybrid
from kinds import KINDS


def write_hole(folder, kind, **shape):
    """A model of a kind of kinds.py or hybrid_models.py, of any size, in bf16."""
    import torch

    tokenizer = write_tokenizer(folder)
    shape = dict(max_position_embeddings=1 << 20, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
                 pad_token_id=tokenizer.pad_token_id) | shape
    with torch.device("meta"):
        model_class, config = hybrid(kind, shape, shape) if kind in HYBRIDS else KINDS[kind](shape)
        config.dtype = torch.bfloat16
        model = model_class(config)
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    tied = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        size = 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder
