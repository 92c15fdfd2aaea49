"""Optimizers beside torch's, and 8-bit AdamW beside torchao's, which has the same blocks and values."""

import json
import math
import os
import subprocess

import llamafactory_data
import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file, save_file

# Its update is compiled otherwise, which takes a minute and changes nothing.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

NUM_STEPS = 30
HYPER = dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    """Weights, and gradients of several magnitudes, each number of its own; the small one is not quantized by anyone."""
    folder = tmp_path_factory.mktemp("optim")
    torch.manual_seed(0)
    weights = {"large.weight": torch.randn(64, 256), "small.weight": torch.randn(10, 7)}
    save_file(weights, folder / "weights.safetensors")
    drift = {name: torch.randn_like(w) for name, w in weights.items()}
    magnitude = {name: 1e-3 * torch.randn_like(w).exp() for name, w in weights.items()}
    steps = []
    for i in range(NUM_STEPS):
        gradients = {name: magnitude[name] * (torch.randn_like(w) + 0.5 * drift[name])
                     for name, w in weights.items()}
        steps.append(str(folder / f"gradients{i}.safetensors"))
        save_file(gradients, steps[-1])
    return folder, steps


def ours(problem, optimizer, **roles):
    """`roles`: of parameters that are not matrices of linear layers."""
    folder, steps = problem
    job = HYPER | dict(weights=str(folder / "weights.safetensors"), gradients=steps, optimizer=optimizer, roles=roles)
    (folder / "job.json").write_text(json.dumps(job))
    subprocess.run([BUILD / "optim_probe", folder / "job.json", folder / "result.safetensors"], check=True)
    return load_file(folder / "result.safetensors")


def moved(problem, names, optimizer, steps):
    """What the optimizer, made of these weights, makes of them."""
    weights = {name: torch.nn.Parameter(w) for name, w in load_file(problem / "weights.safetensors").items()
               if name in names}
    optimizer = optimizer(weights.values())
    for path in steps:
        gradients = load_file(path)
        for name, weight in weights.items():
            weight.grad = gradients[name]
        optimizer.step()
    return {name: w.detach() for name, w in weights.items()}


@pytest.mark.parametrize("name, factor", [("muon", "original"), ("muon_match_rms_adamw", "match_rms_adamw")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_muon_is_torch(dtype, name, factor, tmp_path):
    """20 steps: matrices of layers by torch.optim.Muon, everything else by AdamW."""
    torch.manual_seed(1)
    matrices = {"up": (96, 32), "down": (32, 96), "q": (48, 48), "q.lora_A": (4, 48)}
    others = {"embedding": (50, 32), "head": (50, 32), "norm": (32,), "bias": (48,), "value_head": (1, 32)}
    roles = {name: name for name in others} | {"q.lora_A": "lora_A"}
    shapes = matrices | others
    save_file({name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}, tmp_path / "weights.safetensors")
    steps = [str(tmp_path / f"gradients{i}.safetensors") for i in range(20)]
    for path in steps:
        save_file({name: (1e-2 * torch.randn(shape)).to(dtype) for name, shape in shapes.items()}, path)
    result = ours((tmp_path, steps), name, **roles)
    lr, decay = HYPER["learning_rate"], HYPER["weight_decay"]
    expected = moved(tmp_path, matrices, lambda p: torch.optim.Muon(p, lr=lr, weight_decay=decay, adjust_lr_fn=factor),
                     steps)
    for name in others:
        decayed = 0.0 if name in ("norm", "bias") else decay
        expected |= moved(tmp_path, [name], lambda p: torch.optim.AdamW(
            p, lr=lr, betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["epsilon"], weight_decay=decayed), steps)
    start = load_file(tmp_path / "weights.safetensors")
    for name in shapes:
        assert not torch.equal(start[name], expected[name])
        if dtype == torch.float32:
            tolerance = dict(rtol=0, atol=0) if name in matrices else dict(rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(result[name], expected[name], **tolerance)
        else:
            # Torch rounds w + rate * update to bf16 in one way where tensors are contiguous and in another where they are not. Gradients
            # do not depend on weights here, so a step adds at most one rounding (2^-8 of the weight) to what differs.
            size = torch.maximum(start[name].abs(), expected[name].abs()).float()
            assert ((result[name].float() - expected[name].float()).abs() <= len(steps) * 2**-8 * size).all(), name
    assert result["momentum_buffer.up"].numel() == 96 * 32


def test_muon_of_llama_factory(tmp_path):
    """use_muon: its optimizer's first step is ours to the rounding of its bf16 iteration, whose start it norms by a momentum
    that is 20 times ours."""
    [muon] = llamafactory_data.functions("third_party/muon/muon.py", ["zeropower_via_newtonschulz5", "Muon"],
                                         dict(torch=torch, math=math))[1:]
    torch.manual_seed(2)
    shapes = {"up": (96, 32), "down": (32, 96)}
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, tmp_path / "weights.safetensors")
    steps = [str(tmp_path / f"gradients{i}.safetensors") for i in range(3)]
    for path in steps:
        save_file({name: 1e-2 * torch.randn(shape) for name, shape in shapes.items()}, path)
    result = ours((tmp_path, steps), "muon_match_rms_adamw")
    expected = moved(tmp_path, shapes, lambda p: muon(
        lr=HYPER["learning_rate"], wd=HYPER["weight_decay"], muon_params=list(p)), steps)
    start = load_file(tmp_path / "weights.safetensors")
    for name in shapes:
        size = (expected[name] - start[name]).norm()
        # A rounding of bf16 (2^-8) for each of its 5 iterations' three products.
        assert 0 < (result[name] - expected[name]).norm() < 15 * 2**-8 * size


def theirs(problem, make):
    folder, steps = problem
    weights = {name: torch.nn.Parameter(w) for name, w in load_file(folder / "weights.safetensors").items()}
    optimizer = make(weights.values(), lr=HYPER["learning_rate"], betas=(HYPER["beta1"], HYPER["beta2"]),
                     eps=HYPER["epsilon"], weight_decay=HYPER["weight_decay"])
    for path in steps:
        for name, gradient in load_file(path).items():
            weights[name].grad = gradient
        optimizer.step()
    return {name: w.detach() for name, w in weights.items()}, optimizer


def test_adamw_is_torch(problem):
    result, (weights, _) = ours(problem, "adamw_torch"), theirs(problem, torch.optim.AdamW)
    for name, weight in weights.items():
        torch.testing.assert_close(result[name], weight, rtol=1e-6, atol=1e-7)


def test_values_are_torchaos(problem):
    from torchao.optim.quant_utils import create_dynamic_map

    result = ours(problem, "adamw_8bit")
    for signed in (True, False):
        values = result["values.signed" if signed else "values.unsigned"].tolist()
        assert values == pytest.approx(sorted(create_dynamic_map(signed)), rel=1e-6)


def test_8_bit_adamw_is_as_close_as_torchaos(problem):
    from torchao.optim import AdamW8bit

    start = load_file(problem[0] / "weights.safetensors")
    exact, _ = theirs(problem, torch.optim.AdamW)
    small, _ = theirs(problem, lambda p, **keys: AdamW8bit(list(p), block_size=256, **keys))
    result = ours(problem, "adamw_8bit")
    torch.testing.assert_close(result["small.weight"], exact["small.weight"], rtol=1e-6, atol=1e-7)
    moved = (exact["large.weight"] - start["large.weight"]).norm()
    our_error = (result["large.weight"] - exact["large.weight"]).norm() / moved
    their_error = (small["large.weight"] - exact["large.weight"]).norm() / moved
    apart = (result["large.weight"] - small["large.weight"]).norm() / moved
    print(f"8-bit moments move weights {our_error:.4f} apart from fp32 ones, torchao's {their_error:.4f}, "
          f"ours from torchao's {apart:.4f}")
    assert 0 < our_error < 1.1 * their_error
    assert apart < 1.5 * their_error
