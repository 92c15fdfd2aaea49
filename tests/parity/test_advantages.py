"""Advantages against the lines of TRL's trainers that compute them, run in double."""

import inspect
import json
import subprocess
import textwrap
from types import SimpleNamespace

import pytest
import torch
from conftest import BUILD

GENERATIONS = 4
REWARDS = [[0.25, 1.5, -2.0, 0.75], [0.1] * GENERATIONS, [3.0, 3.0, 3.0, -1.0]]
# A sum of a few numbers in another order, relative to the largest advantage.
TOLERANCE = 1e-13


def lines_of(trainer):
    """The trainer's own lines, from the rewards of functions to the advantages."""
    method = inspect.getsource(trainer._generate_and_score_completions)
    begin = method.index("        unscorable_mask = ")
    end = method.index("        is_std_zero = ", begin) if trainer.__name__ == "RLOOTrainer" else method.index(
        "        advantages = torch.nan_to_num(", begin)
    lines = textwrap.dedent(method[begin:end])
    if trainer.__name__ == "RLOOTrainer":
        lines += "is_std_zero = torch.isclose(std_rewards, torch.zeros_like(std_rewards))\n"
    return lines


def theirs(trainer_name, **settings):
    import trl
    from trl.trainer.utils import nanstd

    trainer = getattr(trl, trainer_name)
    stub = SimpleNamespace(
        reward_weights=torch.ones(1, dtype=torch.double), reward_funcs=[None],
        multi_objective_aggregation="sum_then_normalize", reward_clip_range=None, beta=0.0, normalize_advantages=False, **settings)
    names = dict(torch=torch, nanstd=nanstd, self=stub, device="cpu", num_generations=GENERATIONS,
                 rewards_per_func=torch.tensor(REWARDS, dtype=torch.double).view(-1, 1))
    # TRL divides counts of rewards, which gives numbers of the default dtype.
    torch.set_default_dtype(torch.double)
    try:
        exec(lines_of(trainer), names)
    finally:
        torch.set_default_dtype(torch.float32)
    return names["advantages"], names["is_std_zero"].double().mean().item()


def ours(estimator, scale):
    request = json.dumps(dict(estimator=estimator, scale=scale, rewards=REWARDS))
    answer = json.loads(subprocess.check_output([BUILD / "rollout_probe"], input=request, text=True))
    return torch.tensor(answer["advantages"], dtype=torch.double).flatten(), answer["zero_std_share"]


@pytest.mark.parametrize(
    "estimator, scale, trainer, settings",
    [("grpo", scale, "GRPOTrainer", dict(scale_rewards=scale)) for scale in ("group", "batch", "none")]
    + [("dr_grpo", "group", "GRPOTrainer", dict(scale_rewards="none")), ("rloo", "group", "RLOOTrainer", {})])
def test_advantages_are_those_of_trl(estimator, scale, trainer, settings):
    expected, expected_share = theirs(trainer, **settings)
    advantages, share = ours(estimator, scale)
    assert advantages.abs().max() > 0.5
    # Equal rewards: their mean is rounded in TRL, and divided by 1e-4.
    assert (advantages - expected).abs().max() <= TOLERANCE * max(1, expected.abs().max())
    assert share == pytest.approx(expected_share)
