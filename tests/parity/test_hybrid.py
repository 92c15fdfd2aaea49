"""Training a hybrid of GatedDeltaNet and softmax attention (Qwen3.5) against transformers' Trainer, PEFT and TRL; the same
on any number of ranks."""

import pytest
import torch
from conftest import Running, relative_difference, settings_of, write_model
from pairs import encoded_rows, load, pair_columns, trl_run, write_preference_data
from test_lora import assert_same_adapters, with_adapter, write_adapter
from test_trainer import WEIGHTS, our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE, of_log_ratio

NUM_STEPS = 5
SHARED = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-3,
              adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, weight_decay=0.1)
# transformers computes the gated delta rule in fp32 whatever the model's dtype: gradients' norms hold its roundings.
NORMS = 1e-4
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z",
       "in_proj_a", "in_proj_b", "out_proj"]


@pytest.fixture(scope="module")
def own_place(tmp_path_factory):
    return tmp_path_factory.mktemp("hybrids")


@pytest.fixture(scope="module")
def hybrid(own_place):
    return str(write_model(own_place / "qwen3_5", "qwen3_5"))


@pytest.fixture(scope="module")
def preferences(own_place):
    return write_preference_data(own_place / "for_hybrids")


def run(settings, num_ranks=1):
    finished = Running(settings, num_ranks).wait()
    assert finished.status == 0, finished.text
    return finished


def assert_same_training(finished, theirs):
    losses = finished.logged("loss")
    assert len(set(losses)) == NUM_STEPS
    assert relative_difference(losses, [entry["loss"] for entry in theirs]) < TOLERANCE
    assert relative_difference(finished.logged("grad_norm"), [entry["grad_norm"] for entry in theirs]) < NORMS


def test_sft(hybrid, data, tmp_path):
    from transformers import AutoModelForCausalLM

    settings = settings_of(hybrid, data, tmp_path / "ours") | SHARED | dict(disable_shuffling=True)
    finished = run(settings)
    history, model = transformers_run(hybrid, our_rows(settings, tmp_path), tmp_path, **SHARED)
    assert_same_training(finished, history)
    saved, info = AutoModelForCausalLM.from_pretrained(finished.output_dir, dtype=torch.float32,
                                                       output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    start = AutoModelForCausalLM.from_pretrained(hybrid, dtype=torch.float32).state_dict()
    mine = saved.state_dict()
    moved = apart = 0.0
    for name, value in model.state_dict().items():
        moved += (value - start[name]).double().square().sum().item()
        apart += (value - mine[name]).double().square().sum().item()
    assert (apart / moved) ** 0.5 < WEIGHTS


def test_lora(hybrid, preferences, tmp_path):
    start = write_adapter(hybrid, tmp_path / "start", target_modules=ALL)
    settings = settings_of(hybrid, preferences, tmp_path / "ours") | SHARED | dict(disable_shuffling=True)
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start)
    finished = run(settings)
    history, trained = transformers_run(hybrid, our_rows(settings, tmp_path), tmp_path,
                                        prepare=lambda model: with_adapter(model, start), **SHARED)
    assert_same_training(finished, history)
    assert_same_adapters(finished.output_dir, trained, start, tmp_path)


@pytest.mark.parametrize("shares_prompt", [False, True])
def test_dpo(shares_prompt, hybrid, preferences, tmp_path):
    """A prompt that two answers share is computed once: the recurrence goes on from its end in both."""
    from trl import DPOConfig, DPOTrainer

    settings = settings_of(hybrid, preferences, tmp_path / "ours", stage="dpo", dataset="pairs") | SHARED
    settings |= dict(disable_shuffling=True, pref_beta=0.05, pref_share_prompt=shares_prompt)
    finished = run(settings)
    columns = pair_columns(encoded_rows(settings, tmp_path))
    theirs = trl_run(DPOTrainer, DPOConfig, load(hybrid), columns, tmp_path, **SHARED, beta=0.05)
    assert_same_training(finished, theirs)
    allowed = of_log_ratio(finished.logged("logps/chosen"))
    for key in ("rewards/chosen", "rewards/margins", "logps/chosen", "logps/rejected"):
        expected = [entry[key] for entry in theirs]
        assert finished.logged(key) == pytest.approx(expected, rel=TOLERANCE, abs=allowed), key


WAYS = {
    "zigzag": dict(sequence_parallel_size=3, sequence_parallel_mode="zigzag-ring"),
    "ulysses, ZeRO 3": dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses", zero_stage=3,
                            offload_activations=True),
    "async ulysses": dict(sequence_parallel_size=2, sequence_parallel_mode="async-ulysses"),
    "data and rings, ZeRO 2": dict(sequence_parallel_size=2, sequence_parallel_mode="striped-ring", zero_stage=2,
                                   num_ranks=4),
}


@pytest.mark.parametrize("name", WAYS)
def test_ranks(name, hybrid, preferences, tmp_path):
    """Pairs that share their prompt, on several ranks: what one rank computes."""
    ways = dict(WAYS[name])
    num_ranks = ways.pop("num_ranks", ways["sequence_parallel_size"])
    shared = SHARED | dict(disable_shuffling=True, pref_share_prompt=True,
                           gradient_accumulation_steps=4 if num_ranks == ways["sequence_parallel_size"] else 2)
    settings = settings_of(hybrid, preferences, tmp_path / "one", stage="dpo", dataset="pairs") | shared
    alone = run(settings | dict(gradient_accumulation_steps=4))
    settings = settings_of(hybrid, preferences, tmp_path / "many", stage="dpo", dataset="pairs") | shared | ways
    many = run(settings, num_ranks)
    assert relative_difference(many.logged("loss"), alone.logged("loss")) < TOLERANCE
    assert relative_difference(many.logged("grad_norm"), alone.logged("grad_norm")) < TOLERANCE
