"""8-bit AdamW beside torchao's, which quantizes moments in the same blocks to the same values."""

import json
import os
import subprocess

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


def ours(problem, optimizer):
    folder, steps = problem
    job = HYPER | dict(weights=str(folder / "weights.safetensors"), gradients=steps, optimizer=optimizer)
    (folder / "job.json").write_text(json.dumps(job))
    subprocess.run([BUILD / "optim_probe", folder / "job.json", folder / "result.safetensors"], check=True)
    return load_file(folder / "result.safetensors")


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
