"""Experts: their tensors by the names that files have, which transformers' modules stack."""


def by_file_name(tensors):
    """gate_up_proj [experts, 2 x intermediate, hidden] and down_proj [experts, hidden, intermediate] taken apart."""
    apart = {}
    for name, stacked in tensors.items():
        prefix, _, kind = name.rpartition(".")
        if not prefix.endswith(".experts"):
            apart[name] = stacked
            continue
        if f"{prefix}.gate_up_proj_bias" in tensors:  # gpt-oss, whose files have them so: matrices as [in, out]
            part, what = (kind.removesuffix("_bias"), "bias") if kind.endswith("_bias") else (kind, "weight")
            for number, tensor in enumerate(stacked):
                apart[f"{prefix}.{number}.{part}.{what}"] = tensor.t() if tensor.dim() == 2 else tensor
            continue
        for number, tensor in enumerate(stacked):
            parts = dict(zip(("gate_proj", "up_proj"), tensor.chunk(2))) if kind == "gate_up_proj" else {kind: tensor}
            for part, value in parts.items():
                apart[f"{prefix}.{number}.{part}.weight"] = value
    return apart
