"""Folders of GPTQ and AWQ as plain numbers, by code of GPTQModel and AutoAWQ, the packages that transformers and
LLaMA-Factory read such folders with. Both want GPUs to be installed; files of their source archives do not."""

import functools
import importlib
import importlib.util
import json
import shutil
import sys
import types

import source_archives
import torch
from safetensors.torch import load_file, save_file

GPTQMODEL, AUTOAWQ = ("gptqmodel", "7.7.0"), ("autoawq", "0.2.9")


@functools.cache
def of_gptq():
    """GPTQModel's module that dequantizes files. Afterwards the package is not there, since PEFT asks for it."""
    folder = source_archives.source(*GPTQMODEL)

    def module(name, **contents):
        made = sys.modules[name] = types.ModuleType(name)
        vars(made).update(contents)

    for name in ("gptqmodel", "gptqmodel.utils", "gptqmodel.quantization"):
        module(name, __path__=[str(folder / name.replace(".", "/"))])
    module("gptqmodel.utils.logger", setup_logger=lambda: None)
    module("gptqmodel.utils.torch", HAS_NPU=False)
    loaded = importlib.import_module("gptqmodel.utils.model_dequant")
    for name in [name for name in sys.modules if name.split(".")[0] == "gptqmodel"]:
        del sys.modules[name]
    return loaded


def of_awq():
    """AutoAWQ's module for codes. Its own numbers are fp16; here scales are given in fp32."""
    path = source_archives.source(*AUTOAWQ) / "awq" / "utils" / "packing_utils.py"
    spec = importlib.util.spec_from_file_location("awq_packing", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def awq_numbers(tensors, group_size):
    numbers = {}
    for name, tensor in tensors.items():
        linear, part = name.rsplit(".", 1)
        if part == "qweight":
            zeros, scales = tensors[f"{linear}.qzeros"], tensors[f"{linear}.scales"].float()
            size = tensor.shape[0] if group_size == -1 else group_size
            numbers[f"{linear}.weight"] = of_awq().dequantize_gemm(tensor, zeros, scales, 4, size).t().contiguous()
        elif part not in ("qzeros", "scales"):
            numbers[name] = tensor
    return numbers


def plain_copy(folder, copy):
    """The folder's model in fp32, without quantization_config."""
    shutil.copytree(folder, copy)
    config = json.loads((folder / "config.json").read_text())
    quantization = config.pop("quantization_config")
    (copy / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    if quantization["quant_method"] == "gptq":
        numbers = of_gptq().convert_gptq_file(weights, torch.float32, quantization, "cpu")
    else:
        numbers = awq_numbers(load_file(weights), quantization["group_size"])
    save_file(numbers, copy / "model.safetensors", {"format": "pt"})
    return copy
