"""gpt-oss: a small model of it, and the matrices of its experts in MXFP4, as its published folders have them."""

import json
import pathlib

WINDOW = 9
GROUP = 32  # numbers that share a power of two


def small(shape):
    """Class and configuration: two layers, the first with a window, numbers of which a fifth is clamped."""
    from transformers import GptOssConfig, GptOssForCausalLM

    own = dict(hidden_size=64, intermediate_size=32, num_attention_heads=6, head_dim=16, num_local_experts=6,
               num_experts_per_tok=2, sliding_window=WINDOW, swiglu_limit=0.6)
    return GptOssForCausalLM, GptOssConfig(**own | shape)


def attention_for(folder):
    """transformers has sinks in eager attention alone."""
    kind = json.loads((pathlib.Path(folder) / "config.json").read_text())["model_type"]
    return "eager" if kind == "gpt_oss" else "sdpa"


def in_mxfp4(folder, scales=(118, 122), seed=0):
    """Puts random matrices in MXFP4 in the place of the experts' own, with powers of two of these bounds. Returns their
    blocks and scales by the names of the matrices."""
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(seed)
    tensors, quantized = load_file(folder / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith((".gate_up_proj", ".experts.down_proj"))]:
        experts, num_in, num_out = tensors.pop(name).shape
        blocks = torch.randint(256, (experts, num_out, num_in // GROUP, GROUP // 2), generator=generator, dtype=torch.uint8)
        powers = torch.randint(scales[0], scales[1] + 1, blocks.shape[:-1], generator=generator, dtype=torch.uint8)
        quantized[name] = blocks, powers
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": powers}
    assert quantized
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    not_converted = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=not_converted)
    (folder / "config.json").write_text(json.dumps(config))
    return quantized
