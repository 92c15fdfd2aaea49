"""Files of tensors and of models that lie about sizes."""

import json
import math

from made_texts import FEW, NUMBERS


def safetensors(header, num_zeros=0):
    """Way 1 of the targets' safetensors_file: they put the length before it."""
    return f"1{num_zeros}\n{header}"


def tensor_files():
    def entry(**changes):
        num_zeros = changes.pop("num_zeros", 8)
        return safetensors(json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}), num_zeros)

    title = '{"\\u001b]0;x\\u0007": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    return {name: safetensors(text) for name, text in (FEW | NUMBERS).items()} | {
        "header-of-lists": b"0" + (4_000_000).to_bytes(8, "little") + b"[" * 4_000_000,
        "length-lies": b"0" + (2**63).to_bytes(8, "little") + b"{}",
        "length-0": b"0" + bytes(8),
        "short": b"0\x01",
        "shape-wraps": entry(shape=[2**32, 2**32]),
        "shape-0": entry(shape=[0, 2**62], data_offsets=[0, 0], num_zeros=0),
        "shape-negative": entry(shape=[-2]),
        "shape-of-fractions": entry(shape=[2.0]),
        "shape-of-many": entry(shape=[1] * 100_000 + [2]),
        "offsets-turned": entry(data_offsets=[8, 0]),
        "offsets-beyond": entry(data_offsets=[0, 2**63]),
        "i32": entry(dtype="I32"),
        "i64": entry(dtype="I64", shape=[1]),
        "bool": entry(dtype="BOOL", shape=[8]),
        "name-with-escapes": safetensors(title, 8),
    }


def state_files():
    def part(tensors):
        header, at = {}, 0
        for name, (dtype, shape, size) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        return safetensors(json.dumps(header), at)

    eight = ("F32", [8], 32)
    return tensor_files() | {
        "wide-run": part({"exp_avg w 0 9223372036854775807": eight}),
        "negative-run": part({"exp_avg w -9223372036854775808 8": eight}),
        "short-run": part({"exp_avg w 0 8": ("F32", [2], 8), "steps w 0 8": ("I64", [1], 8)}),
        "no-steps": part({"exp_avg w 0 8": eight, "steps w 0 8": ("I64", [0], 0)}),
        "two-dims": part({"exp_avg w 0 8": ("F32", [2, 4], 32), "steps w 0 8": ("I64", [1], 8)}),
    }


def adapter_weights(dtype):
    size = {"I32": 4, "I64": 8}[dtype] * 16
    header = {}
    for i, (name, shape) in enumerate([("lora_A", [2, 8]), ("lora_B", [8, 2])]):
        header[f"base_model.model.model.layers.0.self_attn.q_proj.{name}.weight"] = {
            "dtype": dtype, "shape": shape, "data_offsets": [i * size, (i + 1) * size]}
    return safetensors(json.dumps(header), 2 * size)


def file_of(tensors):
    """{name: (dtype, shape)}, all zeros."""
    sizes, header, end = {"F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1}, {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * sizes[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return safetensors(json.dumps(header), end)


def expert_weights():
    """The model of the target mxfp4_weights; its experts in MXFP4, as plain numbers, and as neither."""
    layer = "model.layers.0."
    plain = {"model.embed_tokens.weight": [8, 32], "model.norm.weight": [32], layer + "input_layernorm.weight": [32],
             layer + "post_attention_layernorm.weight": [32], layer + "self_attn.sinks": [2],
             layer + "mlp.router.weight": [2, 32], layer + "mlp.router.bias": [2],
             layer + "mlp.experts.gate_up_proj_bias": [2, 64], layer + "mlp.experts.down_proj_bias": [2, 32]}
    for linear, shape in (("q", [32, 32]), ("k", [16, 32]), ("v", [16, 32]), ("o", [32, 32])):
        plain |= {f"{layer}self_attn.{linear}_proj.weight": shape, f"{layer}self_attn.{linear}_proj.bias": shape[:1]}
    plain = {name: ("BF16", shape) for name, shape in plain.items()}
    up, down = layer + "mlp.experts.gate_up_proj", layer + "mlp.experts.down_proj"
    quantized = {up + "_blocks": ("U8", [2, 64, 1, 16]), up + "_scales": ("U8", [2, 64, 1]),
                 down + "_blocks": ("U8", [2, 32, 1, 16]), down + "_scales": ("U8", [2, 32, 1])}
    numbers = {up: ("BF16", [2, 32, 64]), down: ("F32", [2, 32, 32])}
    changes = {
        "blocks-alone": {up + "_scales": None},
        "scales-alone": {down + "_blocks": None},
        "blocks-of-floats": {up + "_blocks": ("F32", [2, 64, 1, 16])},
        "scales-of-i8": {down + "_scales": ("I8", [2, 32, 1])},
        "flat-blocks": {up + "_blocks": ("U8", [2, 64, 16])},
        "flat-scales": {up + "_scales": ("U8", [128])},
        "short-scales": {up + "_scales": ("U8", [2, 64, 0])},
        "more-experts": {up + "_blocks": ("U8", [3, 64, 1, 16]), up + "_scales": ("U8", [3, 64, 1])},
        "both": numbers,
    }
    files = {"mxfp4": file_of(plain | quantized), "numbers": file_of(plain | numbers)}
    for name, change in changes.items():
        tensors = {key: value for key, value in (plain | quantized | change).items() if value}
        files[name] = file_of(tensors)
    return files


def fp8_weights():
    """The model of the target fp8_weights; its matrices in fp8, as plain numbers, and as neither."""
    layer = "model.layers.0."
    plain = {"model.embed_tokens.weight": [8, 20], "model.norm.weight": [20], layer + "input_layernorm.weight": [20],
             layer + "post_attention_layernorm.weight": [20], layer + "self_attn.kv_a_layernorm.weight": [6]}
    plain = {name: ("BF16", shape) for name, shape in plain.items()}
    matrices = {"self_attn.q_proj": [12, 20], "self_attn.kv_a_proj_with_mqa": [8, 20], "self_attn.kv_b_proj": [16, 6],
                "self_attn.o_proj": [20, 8], "mlp.gate_proj": [24, 20], "mlp.up_proj": [24, 20], "mlp.down_proj": [20, 24]}
    matrices = {f"{layer}{name}.weight": shape for name, shape in matrices.items()}
    quantized = {name: ("F8_E4M3", shape) for name, shape in matrices.items()}
    quantized |= {name + "_scale_inv": ("F32", [-(-shape[0] // 16), -(-shape[1] // 12)]) for name, shape in matrices.items()}
    up, down = layer + "mlp.up_proj.weight", layer + "mlp.down_proj.weight"
    changes = {
        "numbers-alone": {up + "_scale_inv": None},
        "scales-alone": {down: None},
        "scales-of-plain-numbers": {up: ("BF16", [24, 20])},
        "scales-of-fp8": {up + "_scale_inv": ("F8_E4M3", [2, 2])},
        "flat-scales": {up + "_scale_inv": ("F32", [4])},
        "no-scales": {up + "_scale_inv": ("F32", [0, 2])},
        "more-rows": {up: ("F8_E4M3", [40, 20]), up + "_scale_inv": ("F32", [3, 2])},
        "norms-in-fp8": {"model.norm.weight": ("F8_E4M3", [20])},
    }
    files = {"fp8": file_of(plain | quantized),
             "numbers": file_of(plain | {name: ("BF16", shape) for name, shape in matrices.items()})}
    for name, change in changes.items():
        files[name] = file_of({key: value for key, value in (plain | quantized | change).items() if value})
    return files


def grouped_weights(method):
    """The model of the targets gptq_weights and awq_weights; its matrices in 4 bits, as plain numbers, and as neither."""
    layer = "model.layers.0."
    plain = {"model.embed_tokens.weight": [8, 16], "model.norm.weight": [16], layer + "input_layernorm.weight": [16],
             layer + "post_attention_layernorm.weight": [16]}
    plain = {name: ("BF16", shape) for name, shape in plain.items()}
    shapes = {"self_attn.q": [16, 16], "self_attn.k": [8, 16], "self_attn.v": [8, 16], "self_attn.o": [16, 16],
              "mlp.gate": [24, 16], "mlp.up": [24, 16], "mlp.down": [16, 24]}
    numbers, quantized = {}, {}
    for name, (rows, columns) in shapes.items():
        linear, groups = f"{layer}{name}_proj.", -(-columns // 16)  # down's last group is shorter
        numbers[linear + "weight"] = ("BF16", [rows, columns])
        quantized |= {linear + "qweight": ("I32", [columns // 8, rows] if method == "gptq" else [columns, rows // 8]),
                      linear + "qzeros": ("I32", [groups, rows // 8]), linear + "scales": ("F16", [groups, rows])}
        if method == "gptq":
            quantized[linear + "g_idx"] = ("I32", [columns])
    up = layer + "mlp.up_proj."
    changes = {
        "codes-alone": {up + "scales": None, up + "qzeros": None},
        "no-zeros": {up + "qzeros": None},
        "codes-of-floats": {up + "qweight": ("F32", quantized[up + "qweight"][1])},
        "turned-codes": {up + "qweight": ("I32", quantized[up + "qweight"][1][::-1])},
        "flat-scales": {up + "scales": ("F16", [24])},
        "no-scales": {up + "scales": ("F16", [0, 24])},
        "more-groups": {up + "scales": ("F16", [2, 24]), up + "qzeros": ("I32", [2, 3])},
        "groups-of-all": {up + "g_idx": ("I32", [0])},
        "both": numbers,
    }
    files = {method: file_of(plain | quantized), "numbers": file_of(plain | numbers)}
    for name, change in changes.items():
        files[name] = file_of({key: value for key, value in (plain | quantized | change).items() if value})
    length, header = files[method].split("\n", 1)
    # Groups of -1, and scales that are no numbers.
    files["all-ones"] = b"0" + len(header).to_bytes(8, "little") + header.encode() + b"\xff" * int(length[1:])
    return files


def quantization_keys():
    changes = {
        "no-group": {"group_size": 0}, "largest-group": {"group_size": 2**62}, "group-of-fractions": {"group_size": 0.5},
        "bits": {"bits": 3}, "other-layout": {"checkpoint_format": "marlin"}, "layout-of-lists": {"version": [[]]},
        "kept-null": {"modules_to_not_convert": [None]}, "kept-deep": {"modules_in_block_to_quantize": [[["a"]]]},
        "kept-empty": {"modules_to_not_convert": [""]}, "other-method": {"quant_method": "fp8"},
    }
    return {f"{way}-{name}": way + json.dumps({"bits": 4, "group_size": 16} | change)
            for way in "01" for name, change in changes.items()}


def stacked_adapters():
    """Of the target of that name: weights, and configs."""
    experts = "base_model.model.model.layers.0.mlp.experts."
    shapes = {"base_layer.lora_A": [4, 32], "base_layer.lora_B": [64, 4], "lora_A": [4, 32], "lora_B": [32, 4]}
    whole = {f"{experts}{name}.weight": ("F32", shape) for name, shape in shapes.items()}
    changes = {
        "whole": {},
        "no-a": {f"{experts}lora_A.weight": None},
        "turned": {f"{experts}lora_B.weight": ("F32", [4, 32])},
        "rank-of-one": {f"{experts}base_layer.lora_A.weight": ("F32", [2, 32])},
        "flat": {f"{experts}lora_A.weight": ("F32", [128])},
        "bytes": {f"{experts}lora_A.weight": ("U8", [4, 32])},
        "of-no-expert": {f"{experts}5.lora_A.weight": ("F32", [4, 32])},
    }
    files = {name: "0" + file_of({key: value for key, value in (whole | change).items() if value})
             for name, change in changes.items()}
    plain = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [],
             "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    configs = {
        "as-it-is": {}, "one": {"target_parameters": ["down_proj"]}, "text": {"target_parameters": "down_proj"},
        "numbers": {"target_parameters": [1]}, "empty-name": {"target_parameters": [""]}, "null": {"target_parameters": None},
        "dot": {"target_parameters": ["."]}, "twice": {"target_parameters": ["mlp.experts.down_proj"] * 2},
        "object": {"target_parameters": {"down_proj": 1}}, "largest-rank": {"r": 2**62}, "rank": {"r": 10_000_000},
    }
    return files | {f"config-{name}": "1" + json.dumps(plain | change) for name, change in configs.items()}


def adapter_configs():
    changes = {
        "rank": {"r": 10_000_000},
        "largest-rank": {"r": 2**62},
        "fraction": {"r": 4.7},
        "near": {"r": 2.7},
        "text": {"r": "2"},
        "truth": {"r": True},
        "double": {"r": 1e300},
        "list-as-dropout": {"lora_dropout": []},
        "list-as-type": {"peft_type": ["LORA"]},
        "alpha": {"lora_alpha": 1e308},
    }
    plain = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    return {name: json.dumps(plain | change) for name, change in changes.items()}


def model_config(**changes):
    values = {"model_type": "llama", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 8,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
              "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    return json.dumps(values | changes)


def model_configs():
    stretch = {"rope_type": "yarn", "factor": 1e308, "original_max_position_embeddings": 1}
    return {
        "layers": model_config(num_hidden_layers=10_000_000),
        "all-layers": model_config(num_hidden_layers=2**62),
        "layers-as-truth": model_config(num_hidden_layers=True),
        "words": model_config(vocab_size=2**40),
        "all-words": model_config(vocab_size=2**63 - 1),
        "more-words": model_config(vocab_size=2**64),
        "channels": model_config(hidden_size=2**62),
        "head": model_config(head_dim=2**62),
        "channels-and-head": model_config(hidden_size=2**31, head_dim=2**31),
        "negative-positions": model_config(max_position_embeddings=-1),
        "no-positions": model_config(max_position_embeddings=0),
        "stretch": model_config(rope_scaling=stretch),
        "negative-eps": model_config(rms_norm_eps=-1),
        "pad": model_config(pad_token_id=2**63),
    }
