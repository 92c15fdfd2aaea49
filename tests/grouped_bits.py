"""Folders of GPTQ and AWQ, made of a folder of plain weights: codes by rounding, without data."""

import json

# The column of a word's code i, of the eight codes of a word.
ORDERS = {"gptq": [0, 1, 2, 3, 4, 5, 6, 7], "awq": [0, 2, 4, 6, 1, 3, 5, 7]}


def words(codes, order):
    """[A, B] codes as [A, B / 8] words: eight neighbours in a word."""
    import torch

    eight = codes.to(torch.int64).unflatten(1, (-1, 8))[:, :, order]
    packed = (eight << (4 * torch.arange(8))).sum(-1)
    return torch.where(packed < 2**31, packed, packed - 2**32).to(torch.int32)


def codes_of(matrix, groups, symmetric):
    """Codes of the transpose [columns, rows], and a scale and a zero for each group."""
    import torch

    turned, num_groups = matrix.float().t(), int(groups.max()) + 1
    scales, zeros = [torch.empty(num_groups, turned.shape[1]) for _ in range(2)]
    for group in range(num_groups):
        low, high = (getattr(turned[groups == group], f"a{end}")(0) for end in ("min", "max"))
        if symmetric:
            scales[group], zeros[group] = torch.maximum(-low, high) / 7.5, 8
        else:
            low, high = low.clamp(max=0), high.clamp(min=0)
            scales[group] = (high - low) / 15
            zeros[group] = (-low / scales[group]).round().clamp(1, 15)
    scales = scales.half()
    codes = (turned / scales[groups].float() + zeros[groups]).round().clamp(0, 15)
    return codes, zeros, scales


def in_four_bits(folder, method, group_size=32, symmetric=True, desc_act=False, layout=None, kept=(), **keys):
    """Puts the matrices of the folder's layers in 4 bits, less those whose names have one of `kept`."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(1)
    tensors, count = load_file(folder / "model.safetensors"), 0
    for name in list(tensors):
        if tensors[name].dim() != 2 or ".layers." not in name or any(part in name for part in kept):
            continue
        matrix, linear = tensors.pop(name), name.removesuffix(".weight")
        columns = matrix.shape[1]
        size = columns if group_size == -1 else group_size
        groups = torch.arange(columns) // size
        if desc_act:
            groups = groups[torch.randperm(columns)]
        codes, zeros, scales = codes_of(matrix, groups, symmetric)
        order = ORDERS[method]
        if method == "gptq":
            tensors[f"{linear}.qweight"] = words(codes.t().contiguous(), order).t().contiguous()
            tensors[f"{linear}.g_idx"] = groups.to(torch.int32)
            zeros = zeros - int(layout != "gptq_v2")
        else:
            tensors[f"{linear}.qweight"] = words(codes, order)
        tensors[f"{linear}.qzeros"] = words(zeros, order)
        tensors[f"{linear}.scales"] = scales
        count += 1
    assert count
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quant_method=method, bits=4, group_size=group_size) | (
        dict(sym=symmetric, desc_act=desc_act, checkpoint_format=layout or "gptq") if method == "gptq"
        else dict(version="gemm", zero_point=True, modules_to_not_convert=list(kept) or None)) | keys
    (folder / "config.json").write_text(json.dumps(config))
    return folder
