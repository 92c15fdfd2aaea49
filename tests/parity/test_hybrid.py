"""Training hybrids of GatedDeltaNet and softmax attention (Qwen3.5, Qwen3-Next, Qwen3.5-MoE) against transformers' Trainer,
PEFT and TRL; the same on any number of ranks."""

import pytest
import torch
from conftest import relative_difference, run_to_end, settings_of, write_dataset, write_model
from pairs import encoded_rows, load, pair_columns, trl_run, write_preference_data
from safetensors.torch import load_file, save_file
from shared import made_once
from test_lora import assert_same_adapters, with_adapter, write_adapter
from test_trainer import WEIGHTS, our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE, of_log_ratio

NUM_STEPS = 5
SHARED = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-3,
              adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, weight_decay=0.1)
# transformers computes the gated delta rule in fp32 whatever the model's dtype: gradients' norms hold its roundings.
NORMS = 1e-4
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "out_proj"]
# Linear layers that can have an adapter. Of qwen3_5_moe's MLPs it is the shared expert's; of qwen3_next's it is the
# experts', which PEFT saves otherwise (test_experts.test_adapters).
ALL = {
    "qwen3_5": [*ATTENTION, "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"],
    "qwen3_next": [*ATTENTION, "in_proj_qkvz", "in_proj_ba", "shared_expert_gate"],
    "qwen3_5_moe": [*ATTENTION, "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "shared_expert_gate",
                    "gate_proj", "up_proj", "down_proj"],
}
KINDS = ["qwen3_5", "qwen3_next", "qwen3_5_moe"]


@pytest.fixture(scope="module")
def hybrids(place):
    return {kind: str(made_once(place / kind, lambda folder: write_model(folder, folder.name))) for kind in KINDS}


@pytest.fixture(scope="module")
def hybrid(hybrids):
    return hybrids["qwen3_5"]


@pytest.fixture(scope="module")
def preferences(place):
    return str(made_once(place / "for_hybrids", write_preference_data))


@pytest.fixture(scope="module")
def short_rows(place):
    """Short, so that few choices of experts are close; their lengths are odd and even."""
    return str(made_once(place / "short_rows",
                         lambda folder: write_dataset(folder, num_rows=24, shortest=4, longest=20)))


def run(settings, num_ranks=1):
    return run_to_end(settings, num_ranks)


def with_eager_experts(model):
    """Of which transformers' grouped products know no fp64."""
    if hasattr(model.config, "num_experts"):
        model.set_experts_implementation("eager")
    return model


def assert_same_training(finished, theirs):
    losses = finished.logged("loss")
    assert len(set(losses)) == NUM_STEPS
    assert relative_difference(losses, [entry["loss"] for entry in theirs]) < TOLERANCE
    assert relative_difference(finished.logged("grad_norm"), [entry["grad_norm"] for entry in theirs]) < NORMS


@pytest.mark.parametrize("kind", KINDS)
def test_sft(kind, hybrids, data, short_rows, tmp_path):
    from transformers import AutoModelForCausalLM

    hybrid = hybrids[kind]
    settings = settings_of(hybrid, data if kind == "qwen3_5" else short_rows, tmp_path / "ours") | SHARED
    settings |= dict(disable_shuffling=True)
    finished = run(settings)
    history, model = transformers_run(hybrid, our_rows(settings, tmp_path), tmp_path, with_eager_experts, **SHARED)
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


def begun_adapter(model_folder, folder, targets):
    """As PEFT begins it, but that B is not zero."""
    start = write_adapter(model_folder, folder, target_modules=targets)
    generator = torch.Generator().manual_seed(2)
    matrices = load_file(f"{start}/adapter_model.safetensors")
    for name, matrix in matrices.items():
        if "lora_B" in name:
            matrix.add_(0.02 * torch.randn(matrix.shape, generator=generator))
    save_file(matrices, f"{start}/adapter_model.safetensors", {"format": "pt"})
    return start


@pytest.mark.parametrize("kind", ALL)
def test_lora(kind, hybrids, preferences, tmp_path):
    hybrid = hybrids[kind]
    start = begun_adapter(hybrid, tmp_path / "start", ALL[kind])
    settings = settings_of(hybrid, preferences, tmp_path / "ours") | SHARED | dict(disable_shuffling=True)
    settings |= dict(finetuning_type="lora", adapter_name_or_path=start)
    finished = run(settings)
    history, trained = transformers_run(hybrid, our_rows(settings, tmp_path), tmp_path,
                                        prepare=lambda model: with_adapter(with_eager_experts(model), start), **SHARED)
    assert_same_training(finished, history)
    assert_same_adapters(finished.output_dir, trained, start, tmp_path)


# Packed rows of documents of any length, ten steps. Gradients of these models with experts have norms of 20 to 30, and
# differences grow faster with the weights than tolerance.py takes them to: so steps are small.
LONGER = SHARED | dict(max_steps=10, learning_rate=1e-4, neat_packing=True, packing=True, cutoff_len=48, gradient_accumulation_steps=1,
                       per_device_train_batch_size=2)
RANKS = {
    "ulysses of 2": ("qwen3_next", 2, dict(sequence_parallel_mode="ulysses")),
    "ulysses of 3": ("qwen3_5_moe", 3, dict(sequence_parallel_mode="ulysses")),
    "zigzag ring of 3": ("qwen3_next", 3, dict(sequence_parallel_mode="zigzag-ring")),
    "ring of 2, ZeRO 3": ("qwen3_5_moe", 2, dict(sequence_parallel_mode="ring", zero_stage=3)),
    "usp of 4": ("qwen3_5_moe", 4, dict(sequence_parallel_mode="usp")),
    "ring of 5": ("qwen3_next", 5, dict(sequence_parallel_mode="ring")),
    "balanced ulysses of 6": ("qwen3_5_moe", 6, dict(sequence_parallel_mode="balanced-ulysses")),
}


@pytest.mark.parametrize("name", RANKS)
def test_sft_on_ranks(name, hybrids, short_rows, known_run, tmp_path):
    kind, num_ranks, keys = RANKS[name]
    alone = known_run(settings_of(hybrids[kind], short_rows, "", **LONGER))
    many = run(settings_of(hybrids[kind], short_rows, tmp_path / "many", **LONGER, sequence_parallel_size=num_ranks,
                           **keys), num_ranks)
    assert len(alone.logged("loss")) == 10
    for key in ("loss", "grad_norm"):
        assert relative_difference(many.logged(key), alone.logged(key)) < TOLERANCE, key


@pytest.mark.parametrize("cutoff_len, way", [(24, "exchange heads"), (16384, "pass states on")])
def test_both_ways_of_a_recurrence(cutoff_len, way, hybrids, short_rows, known_run, tmp_path):
    """The plan looks at the longest row that may come, and chooses what is estimated to be faster."""
    settings = LONGER | dict(cutoff_len=cutoff_len)
    alone = known_run(settings_of(hybrids["qwen3_next"], short_rows, "", **settings))
    many = run(settings_of(hybrids["qwen3_next"], short_rows, tmp_path / "many", **settings, sequence_parallel_size=2,
                           sequence_parallel_mode="ring"), 2)
    assert f"layers with a recurrence {way}" in many.texts[0], many.text
    for key in ("loss", "grad_norm"):
        assert relative_difference(many.logged(key), alone.logged(key)) < TOLERANCE, key


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
