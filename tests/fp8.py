"""DeepSeek-V3's matrices in fp8, as its published folders have them."""

import json


def quantized(matrix, block):
    """The matrix in e4m3, and the scale of each block; the last ones may be cut."""
    import torch

    rows, columns = matrix.shape
    counts = [-(-size // of_block) for size, of_block in zip(matrix.shape, block)]
    scales = torch.empty(counts)
    numbers = torch.empty(matrix.shape, dtype=torch.float8_e4m3fn)
    for i in range(counts[0]):
        for j in range(counts[1]):
            part = slice(i * block[0], min(rows, (i + 1) * block[0])), slice(j * block[1], min(columns, (j + 1) * block[1]))
            scales[i, j] = matrix[part].float().abs().max() / torch.finfo(numbers.dtype).max
            numbers[part] = (matrix[part].float() / scales[i, j]).to(numbers.dtype)
    return numbers, scales


def dequantized(numbers, scales, block):
    spread = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return numbers.float() * spread[:numbers.shape[0], :numbers.shape[1]]


def in_fp8(folder, block=(128, 128)):
    """Puts the folder's matrices in fp8, but for the embedding, the head and routers. Returns the numbers that they are
    then, in fp32, by their names."""
    from safetensors.torch import load_file, save_file

    tensors, numbers = load_file(folder / "model.safetensors"), {}
    for name in list(tensors):
        if tensors[name].dim() != 2 or name.endswith(("embed_tokens.weight", "lm_head.weight", ".gate.weight")):
            continue
        tensors[name], tensors[name + "_scale_inv"] = quantized(tensors[name], block)
        numbers[name] = dequantized(tensors[name], tensors[name + "_scale_inv"], block)
    assert numbers
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8",
                                         weight_block_size=list(block))
    (folder / "config.json").write_text(json.dumps(config))
    return numbers
