"""quantization_bit: 8 (LLM.int8) beside bitsandbytes: weights to the bit, products, and training beside transformers and PEFT."""

import json
import shutil
import subprocess

import pytest
import torch
from conftest import BUILD, PROGRAM, relative_difference, write_model
from pairs import load, write_preference_data
from safetensors.torch import load_file, save_file
from shared import made_once
from test_lora import ALL, SHARED, distance, run, settings_for, with_adapter, write_adapter
from test_trainer import our_rows, transformers_run

ROUNDING = 2.0**-24
THRESHOLD = 6.0


@pytest.fixture(scope="session")
def models(models, place):
    """More: files with several projections in one tensor."""
    return models | {"phi3": str(made_once(place / "phi3", lambda folder: write_model(folder, folder.name)))}


@pytest.fixture(scope="module")
def preferences(place):
    return str(made_once(place / "for_adapters", write_preference_data))


def matrices():
    torch.manual_seed(0)
    wide = torch.randn(70, 256) * torch.randn(70, 1).exp()
    some = {"plain": torch.randn(96, 200), "wide": wide, "odd": torch.randn(7, 13), "one": torch.randn(1, 3),
            "zeros": wide.clone(), "tiny": 1e-6 * torch.randn(3, 64), "large": 1e4 * torch.randn(5, 24),
            "even": torch.arange(-254, 255).float().repeat(2, 1),  # halves of codes
            "all": torch.full((9, 2500), 0.5)}  # the largest sums of products
    some["zeros"][5:40] = 0
    return some


def tokens():
    """Of each matrix: below the threshold; a column of large numbers in some tokens; some anywhere; a token of zeros."""
    torch.manual_seed(1)
    for name, matrix in matrices().items():
        x = torch.randn(90, matrix.shape[1]).clamp(-5.9, 5.9)
        if name in ("wide", "odd", "even"):
            x[::3, 1] = 20 * torch.randn(30)
            x[torch.rand(x.shape) < 0.01] = -7.0
            x[7, 2] = 1e5  # more than fp16 has
        x[4] = 0
        yield name, x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_and_products(dtype, tmp_path):
    from bitsandbytes import functional

    torch.set_num_threads(1)
    values = {name: matrix.to(dtype) for name, matrix in matrices().items()}
    inputs = {name: x.to(dtype) for name, x in tokens()}
    alone = {f"{name} alone": inputs[name][30:31].clone() for name in inputs}
    save_file(values | {f"{name} alone": values[name].clone() for name in values}
              | {f"{name}.x": x.contiguous() for name, x in (inputs | alone).items()}, tmp_path / "values.safetensors")
    subprocess.run([BUILD / "four_bits_probe", tmp_path / "values.safetensors", tmp_path / "result.safetensors", "eight"],
                   check=True)
    ours = load_file(tmp_path / "result.safetensors")
    num_apart = 0
    for name, matrix in values.items():
        codes, scales, _ = functional.int8_vectorwise_quant(matrix.half())
        assert ours[f"{name}.codes"].equal(codes) and ours[f"{name}.scales"].equal(scales), name
        # As bitsandbytes' backward of an input of this dtype.
        weight = codes.to(dtype, copy=True).mul_(scales.unsqueeze(1).mul(1.0 / 127.0))
        assert ours[name].equal(weight), name
        assert ours[f"{name}.sums"].equal(torch.ops.bitsandbytes.int8_linear_matmul(codes, codes)), name

        # bitsandbytes multiplies whole columns apart where one token of the call reaches the threshold; ours only the
        # numbers that do. The others of such a column are then rounded, by half a code at the most.
        x = inputs[name]
        tokens_8, own, columns = functional.int8_vectorwise_quant(x.half(), threshold=THRESHOLD)
        apart = x.half().abs() >= THRESHOLD
        sums = torch.ops.bitsandbytes.int8_linear_matmul(tokens_8, codes).double()
        expected = sums * own.double().unsqueeze(1) * scales.double() / 127**2
        part = x[:, columns].double() @ weight[:, columns].double().t()
        kept = torch.where(apart, 0, x.double())
        size = kept.abs() @ weight.double().abs().t() + part.abs() + torch.where(apart, x.double(), 0).abs() @ weight.double().abs().t()
        half_a_code = own.double().unsqueeze(1) / 254 + kept[:, columns].abs().amax(1, keepdim=True) * 2**-11 \
            if len(columns) else torch.zeros(1)
        of_columns = half_a_code * weight[:, columns].double().abs().sum(1)
        of_result = (2.0**-8 if dtype == torch.bfloat16 else 0) * (expected + part).abs()
        allowed = of_columns + of_result * 1.01 + (8 + matrix.shape[1]) * ROUNDING * size
        assert ((ours[f"{name}.y"].double() - expected - part).abs() <= allowed + 1e-30).all(), name
        num_apart += len(columns)
        # Alone a token gets what it gets among others: to the bit, but for the order of sums in a gemm over columns.
        row, among = ours[f"{name} alone.y"][0].double(), ours[f"{name}.y"][30].double()
        if len(columns) == 0:
            assert row.equal(among), name
        assert ((row - among).abs() <= 2.02 * of_result[30] + matrix.shape[1] * ROUNDING * size[30]).all(), name
    assert num_apart > 20


class Product(torch.autograd.Function):
    """LLM.int8 as bitsandbytes computes it on GPUs, by its functions, for one token at a time: a token's own numbers decide
    what is multiplied apart. (On CPUs its training rounds no inputs, and its constant of 1 / 127^2 is off by 2e-5.)"""

    @staticmethod
    def forward(ctx, x, layer):
        from bitsandbytes import functional

        half = x.half()
        apart = half.abs() >= THRESHOLD
        tokens_8, own, _ = functional.int8_vectorwise_quant(half.masked_fill(apart, 0).flatten(0, -2))
        sums = torch.ops.bitsandbytes.int8_linear_matmul(tokens_8, layer.codes).to(x.dtype)
        y = sums * (own.to(x.dtype).unsqueeze(1) * layer.scales.to(x.dtype)) / 127**2
        ctx.layer = layer
        return y.view(*x.shape[:-1], -1) + x.masked_fill(~apart, 0) @ layer.weight.t()

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.layer.weight, None


class Linear8bit(torch.nn.Linear):
    def forward(self, x):
        y = Product.apply(x, self)
        return y if self.bias is None else y + self.bias


def quantized(folder, layer=Linear8bit):
    """transformers' choice of layers of an 8-bit model, their codes and scales."""
    from bitsandbytes import nn
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(load_in_8bit=True)
    assert config.llm_int8_threshold == THRESHOLD
    model, num_layers = load(folder), 0
    for name, found in load(folder, quantization_config=config, device_map="cpu").named_modules():
        if not isinstance(found, nn.Linear8bitLt):
            continue
        module, weight = model.get_submodule(name), found.weight
        module.__class__ = layer
        module.register_buffer("codes", weight.CB, persistent=False)
        module.register_buffer("scales", weight.SCB, persistent=False)
        module.weight.data.copy_(weight.CB * weight.SCB.unsqueeze(1) / 127)
        num_layers += 1
    assert num_layers >= 8
    return model


# qwen2: a tied head, biases. phi3: several projections in one tensor, with one adapter.
TARGETS = {"qwen2": ALL, "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}
NUM_STEPS = 2
# On one process; on two that divide rows and codes, with other chunks; on three; without overlap.
LAYOUTS = [(1, dict(eval_dataset="chats", do_eval=True)), (2, dict(zero_stage=3, tiled_mlp=3)), (3, dict(sequence_parallel_mode="zigzag-ring")),
           (2, dict(sequence_parallel_mode="async-ulysses", disable_gradient_checkpointing=True))]


@pytest.mark.parametrize("kind", TARGETS)
def test_training(kind, models, preferences, tmp_path):
    """A number on the edge between two codes goes to another one after any other rounding before it, so the tolerance is
    four times the distance of the same trainer in fp32 and in double. With this adam_epsilon, a step
    moves the adapters by about their gradients: thousands of numbers, many of which such a code changes."""
    base = models[kind]
    start = write_adapter(base, tmp_path / "start", target_modules=TARGETS[kind], init_lora_weights=False)
    settings = settings_for(base, preferences, tmp_path / "ours", finetuning_type="lora", adapter_name_or_path=start,
                            quantization_bit=8, max_steps=NUM_STEPS)
    rows = our_rows(settings, tmp_path)
    begin = load_file(f"{start}/adapter_model.safetensors")

    def theirs(layer=Linear8bit, dtype=torch.float64):
        history, model = transformers_run(base, rows, tmp_path, dtype=dtype, **(SHARED | dict(max_steps=NUM_STEPS)),
                                          prepare=lambda _: with_adapter(quantized(base, layer), start))
        model.save_pretrained(tmp_path / f"{layer.__name__} {dtype}")
        return [entry["loss"] for entry in history], load_file(
            tmp_path / f"{layer.__name__} {dtype}" / "adapter_model.safetensors")

    expected, adapter = theirs()
    moved = distance(begin, adapter)

    def apart(losses, weights):
        return relative_difference(losses, expected), distance(weights, adapter) / moved

    tolerance = 4 * max(apart(*theirs(dtype=torch.float32)))
    for number, (num_ranks, keys) in enumerate(LAYOUTS):
        finished = run(settings | dict(output_dir=str(tmp_path / f"ours {number}"), sequence_parallel_size=num_ranks) | keys,
                       num_ranks)
        ours = apart(finished.logged("loss"), load_file(finished.output_dir / "adapter_model.safetensors"))
        assert max(ours) < tolerance, (number, ours, tolerance)
    # Inputs that are not rounded are beyond that, as is the model as it is.
    assert apart(*theirs(torch.nn.Linear))[1] > 2 * tolerance
    plain = run(settings | dict(output_dir=str(tmp_path / "plain"), quantization_bit=None))
    assert apart(plain.logged("loss"), load_file(plain.output_dir / "adapter_model.safetensors"))[1] > 2 * tolerance

    # PEFT loads the adapter; evaluation rounds inputs too.
    loaded = with_adapter(quantized(base), tmp_path / "ours 0", is_trainable=False).double().eval()
    total = count = 0
    for row in rows:
        with torch.no_grad():
            logits = loaded(torch.tensor([row["input_ids"]])).logits[0, :-1]
        labels = torch.tensor(row["labels"][1:])
        total += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
        count += (labels != -100).sum().item()
    ours = json.loads((tmp_path / "ours 0" / "eval_results.json").read_text())["eval_loss"]
    assert ours == pytest.approx(total / count, rel=tolerance)


def test_refused_by_name(models, preferences, place, tmp_path):
    experts = str(made_once(place / "qwen3_moe", lambda folder: write_model(folder, folder.name)))
    settings = settings_for(models["qwen2"], preferences, tmp_path / "out", finetuning_type="lora", quantization_bit=8)

    def error_of(command="train", **keys):
        (tmp_path / "config.json").write_text(json.dumps(settings | keys))
        ran = subprocess.run([PROGRAM, command, tmp_path / "config.json"], capture_output=True, text=True)
        assert ran.returncode == 1 and ran.stderr.count("error: ") == 1, ran.stdout + ran.stderr
        return ran.stderr

    assert "quantization_bit: 8 is for finetuning_type: lora" in error_of(finetuning_type="full")
    assert "double_quantization are for quantization_bit: 4" in error_of(double_quantization=False)
    assert "use_dora is not for quantization_bit: 8" in error_of(use_dora=True)
    assert "the model has experts, which are not held in 8 bits here" in error_of(model_name_or_path=experts)
    large = shutil.copytree(models["qwen2"], tmp_path / "large")
    weights = load_file(large / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][3, 5] = 1e5
    save_file(weights, large / "model.safetensors", {"format": "pt"})
    assert f"quantization_bit: 8: {name} of the model has numbers that are not finite in fp16" in error_of(
        model_name_or_path=str(large))
