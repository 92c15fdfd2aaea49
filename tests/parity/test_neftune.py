"""NEFTune beside transformers' own, which gets Longspan's random numbers in place of torch's."""

import numpy as np
import pytest
import torch
from conftest import relative_difference, run_to_end, settings_of
from test_trainer import our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE

NUM_STEPS, ROWS_OF_STEP, ALPHA, SEED = 5, 4, 50.0, 42
SHARED = dict(per_device_train_batch_size=1, gradient_accumulation_steps=ROWS_OF_STEP, learning_rate=1e-3,
              adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS)


def mix(x):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def mix_seed(seed, number):
    return mix(seed + np.uint64(0x9E3779B97F4A7C15) * np.uint64((number + 1) % 2**64))


def unit_noise(step, row, tokens, columns):
    """kernels/dropout.h: in [0, 1), of a row that is a micro-batch of its own."""
    with np.errstate(over="ignore"):
        seed = np.uint64(SEED)
        for number in (step, row, 0, 2**64 - 2):
            seed = mix_seed(seed, number)
        of_row = mix(np.arange(tokens, dtype=np.uint64) + seed)
        of_column = mix(np.arange(1, columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        return (mix(of_row[:, None] + of_column) & np.uint64(2**53 - 1)).astype(np.float64) * 2.0**-53


@pytest.fixture(scope="module")
def reference(models, data, tmp_path_factory):
    """Their log, and the loss of all rows at the end, without noise."""
    folder = tmp_path_factory.mktemp("theirs")
    rows = our_rows(settings_of(models["qwen2"], data, folder / "none", disable_shuffling=True, max_samples=20), folder)
    calls, torchs = 0, torch.Tensor.uniform_

    def uniform_(x, low, high, generator=None):
        nonlocal calls
        if x.dim() != 3:  # a weight, before it is loaded
            return torchs(x, low, high, generator=generator)
        assert x.shape[0] == 1 and generator is None
        unit = unit_noise(*divmod(calls, ROWS_OF_STEP), *x.shape[1:])
        calls += 1
        return x.copy_(torch.from_numpy(unit)).mul_(high - low).add_(low)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "uniform_", uniform_)
        history, model = transformers_run(models["qwen2"], rows, folder, neftune_noise_alpha=ALPHA, **SHARED)
    assert calls == NUM_STEPS * ROWS_OF_STEP
    total = labels = 0
    for row in rows:
        count = len([label for label in row["labels"][1:] if label != -100])
        with torch.no_grad():
            loss = model.eval()(torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss.item()
        total, labels = total + count * loss, labels + count
    return history, total / labels


@pytest.fixture
def trained(models, data, tmp_path):
    count = 0

    def run(num_ranks=1, **keys):
        nonlocal count
        count += 1
        settings = settings_of(models["qwen2"], data, tmp_path / str(count), disable_shuffling=True, max_samples=20)
        settings |= SHARED | dict(sequence_parallel_size=num_ranks, neftune_noise_alpha=ALPHA) | keys
        return run_to_end(settings, num_ranks)

    return run


WAYS = {
    "one": (1, dict()),
    "ulysses": (2, dict(sequence_parallel_mode="ulysses", zero_stage=3, offload_activations=True)),
    "zigzag": (3, dict(sequence_parallel_mode="zigzag-ring", zero_stage=2)),
}


@pytest.mark.parametrize("way", WAYS)
def test_transformers(way, reference, trained):
    num_ranks, keys = WAYS[way]
    finished = trained(num_ranks, eval_dataset="chats", do_eval=True, **keys)
    history, evaluated = reference
    for name in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(name), [entry[name] for entry in history]) < TOLERANCE, name
    assert finished.logged("eval_loss") == [pytest.approx(evaluated, rel=TOLERANCE)]


@pytest.mark.parametrize("keys", [dict(per_device_train_batch_size=2), dict(neat_packing=True, cutoff_len=512)],
                         ids=["rows of their own lengths", "packed"])
def test_shared_rows(keys, trained):
    one = trained(**keys)
    assert relative_difference(one.logged("loss"), trained(2, **keys).logged("loss")) < TOLERANCE
    assert relative_difference(one.logged("loss"), trained(**keys, neftune_noise_alpha=0).logged("loss")) > 1e-4
