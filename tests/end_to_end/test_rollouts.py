"""Rollouts of the model itself: answers, rewards, and a run that is resumed amid the updates on a batch."""

import json

import pytest
from conftest import add_dataset, run_to_end, settings_of

STEPS = 4


def questions(folder):
    folder.mkdir(exist_ok=True)
    rows = [{"instruction": f"What is {i} and {i + 1}?", "input": "", "output": str(2 * i + 1)} for i in range(6)]
    add_dataset(folder, "questions", rows)
    return folder


def settings_for(models, folder, name, **keys):
    data = questions(folder / "data")
    settings = settings_of(models["qwen2"], data, folder / name, stage="grpo", dataset="questions")
    return settings | dict(rollout="self", rewards="length,exact_match", reward_weights="1,2", num_generations=3,
                           max_completion_length=12, cutoff_len=256, per_device_train_batch_size=2,
                           gradient_accumulation_steps=1, max_steps=STEPS, num_iterations=2, save_strategy="steps",
                           save_steps=1, beta=0.02) | keys


@pytest.mark.parametrize("ranks", [1, 2])
def test_resumed_amid_a_batch(ranks, models, tmp_path):
    keys = dict(sequence_parallel_size=ranks)
    whole = run_to_end(settings_for(models, tmp_path, "whole", **keys), ranks)
    rollouts = sorted((whole.output_dir / "rollouts").iterdir())
    assert [path.name for path in rollouts] == ["batch-000000.jsonl", "batch-000001.jsonl"]
    rows = [json.loads(line) for line in rollouts[0].read_text().splitlines()]
    assert len(rows) == 2 * 3 and len({row["group"] for row in rows}) == 2
    for row in rows:
        trained = sum(row["mask"])
        assert row["reward"] == pytest.approx(-trained / 12 + 2 * row["rewards"]["exact_match"])
        assert all(number <= 0 for number in row["logprobs"])
    # The sampler's log-probabilities are the trainer's.
    assert max(whole.logged("sampling/logp_difference")[::2]) < 1e-4
    weights = (whole.output_dir / "model.safetensors").read_bytes()
    (whole.output_dir / "model.safetensors").unlink()
    # The first update on the second batch is done, the second is not.
    from_third = str(whole.output_dir / "checkpoint-3")
    resumed = run_to_end(settings_for(models, tmp_path, "whole", **keys, resume_from_checkpoint=from_third), ranks)
    assert (resumed.output_dir / "model.safetensors").read_bytes() == weights
