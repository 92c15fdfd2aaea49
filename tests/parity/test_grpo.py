"""Training on rollouts against TRL's GRPOTrainer and RLOOTrainer, which get the same rollouts and rewards."""

import json
import random

import pytest
import torch
from conftest import relative_difference, run_to_end, settings_of
from pairs import load
from tolerance import ADAM_EPSILON, TOLERANCE

NUM_STEPS = 5
GROUPS, GENERATIONS = 2, 4  # of a step
OPTIMIZER = dict(learning_rate=1e-3, adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, lr_scheduler_type="linear",
                 weight_decay=0.1)
METRICS = ["reward", "reward_std", "frac_reward_zero_std", "entropy", "completions/mean_length"]
CLIPPED = ["clip_ratio/low_mean", "clip_ratio/high_mean"]


def make_rollouts(vocab_size, num_batches=NUM_STEPS, seed=5, num_prompts=GROUPS):
    """Batches of groups: prompts of 5 to 30 tokens, answers of 1 to 25; a group's rewards are equal in every fifth."""
    rng = random.Random(seed)

    def ids(least, most):
        return [rng.randrange(5, vocab_size) for _ in range(rng.randint(least, most))]

    batches = []
    for batch in range(num_batches):
        groups = []
        for number in range(num_prompts):
            prompt = ids(5, 30)
            rewards = [round(rng.uniform(-1, 2), 3) for _ in range(GENERATIONS)]
            if (batch * num_prompts + number) % 5 == 4:
                rewards = [0.5] * GENERATIONS
            answers = [ids(1, 25) for _ in range(GENERATIONS)]
            # A sampler whose log-probabilities are those of a nearly uniform model, some far off.
            sampled = [[-4.5 - rng.random() * 2 for _ in answer] for answer in answers]
            groups.append(dict(prompt=prompt, answers=answers, rewards=rewards, sampled=sampled,
                               truncated=[rng.random() < 0.3 for _ in answers]))
        batches.append(groups)
    return batches


def write_rollouts(path, batches, with_logprobs=False):
    lines = []
    for batch, groups in enumerate(batches):
        for number, group in enumerate(groups):
            for i, answer in enumerate(group["answers"]):
                row = dict(group=f"{batch}.{number}", token_ids=group["prompt"] + answer,
                           mask=[0] * len(group["prompt"]) + [1] * len(answer), reward=group["rewards"][i],
                           truncated=group["truncated"][i])
                if with_logprobs:
                    row["logprobs"] = [0.0] * len(group["prompt"]) + group["sampled"][i]
                lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")


def theirs(trainer_class, config_class, folder, model_folder, batches, with_logprobs=False, **arguments):
    """TRL's trainer on these rollouts, in double. Returns its log."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    queue = [group for groups in batches for group in groups]
    reward_of = {}
    eos_by_answer = {}

    class OnRollouts(trainer_class):
        def _generate(self, prompts):
            made = len(prompts) // GENERATIONS
            groups = [queue.pop(0) for _ in range(made)]
            prompt_ids = [group["prompt"] for group in groups for _ in range(GENERATIONS)]
            answers = [answer for group in groups for answer in group["answers"]]
            for group in groups:
                for answer, reward, cut in zip(group["answers"], group["rewards"], group["truncated"]):
                    reward_of[tuple(answer)] = reward
                    eos_by_answer[tuple(answer)] = cut
            sampled = [numbers for group in groups for numbers in group["sampled"]] if with_logprobs else None
            return prompt_ids, answers, None, ["text"] * len(answers), sampled, {}, None, None

    def reward(completion_ids, **_):
        return [reward_of[tuple(ids)] for ids in completion_ids]

    trainer = OnRollouts(
        model=load(model_folder).double(),
        reward_funcs=[reward],
        args=config_class(
            output_dir=str(folder / "trl"), logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False,
            gradient_checkpointing=False, disable_tqdm=True, num_generations=GENERATIONS,
            per_device_train_batch_size=GROUPS * GENERATIONS, gradient_accumulation_steps=1, temperature=1.0,
            **(OPTIMIZER | arguments),
        ),
        train_dataset=Dataset.from_list([dict(prompt="p")] * 64),
        processing_class=AutoTokenizer.from_pretrained(model_folder),
    )
    if getattr(trainer, "ref_model", None) is not None:
        trainer.ref_model.double()
    trainer.use_vllm = with_logprobs
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry], trainer.model


def ours(folder, model_folder, **keys):
    settings = settings_of(model_folder, folder, folder / "ours", stage="grpo") | OPTIMIZER
    for key in ("dataset", "dataset_dir"):
        settings.pop(key)
    settings |= dict(rollouts=str(folder / "rollouts.jsonl"), num_generations=GENERATIONS,
                     per_device_train_batch_size=GROUPS, gradient_accumulation_steps=1, cutoff_len=64)
    return settings | keys


def assert_same(finished, log, names):
    losses, expected = finished.logged("loss"), [entry["loss"] for entry in log]
    assert len(losses) == NUM_STEPS
    # The loss of a batch is about 0 with a ratio of 1: the advantages sum to 0, so its size is that of its terms.
    assert losses == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    assert relative_difference(finished.logged("grad_norm"), [entry["grad_norm"] for entry in log]) < TOLERANCE
    for name in names:
        assert finished.logged(name) == pytest.approx([entry[name] for entry in log], rel=TOLERANCE,
                                                      abs=TOLERANCE), name


def compare(models, tmp_path, names, their_arguments, our_keys, with_logprobs=False, trainer="GRPO", reuse=1):
    import trl

    folder = models["qwen2"]
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    batches = make_rollouts(vocab)
    write_rollouts(tmp_path / "rollouts.jsonl", batches, with_logprobs)
    log, model = theirs(getattr(trl, f"{trainer}Trainer"), getattr(trl, f"{trainer}Config"), tmp_path, folder, batches,
                        with_logprobs, **their_arguments)
    finished = run_to_end(ours(tmp_path, folder, **our_keys))
    assert_same(finished, log, names)
    trained = load(finished.output_dir)
    for (name, value), (_, expected) in zip(trained.named_parameters(), model.named_parameters()):
        assert relative_difference(value.double(), expected.double()) < TOLERANCE, name


LOSSES = {
    "grpo": (dict(loss_type="grpo"), dict(loss_type="grpo")),
    "bnpo": (dict(loss_type="bnpo"), dict(loss_type="bnpo")),
    "dr_grpo": (dict(loss_type="dr_grpo", max_completion_length=40, scale_rewards="none"),
                dict(loss_type="dr_grpo", max_completion_length=40, scale_rewards="none")),
    "dapo": (dict(loss_type="dapo", epsilon=0.1, epsilon_high=0.28), dict(epsilon=0.1, epsilon_high=0.28)),
    "gspo": (dict(loss_type="grpo", importance_sampling_level="sequence"), dict(loss_type="gspo")),
    "cispo": (dict(loss_type="cispo", epsilon_high=1.01), dict(loss_type="cispo", epsilon_high=1.01)),
    "batch": (dict(loss_type="dapo", scale_rewards="batch"), dict(scale_rewards="batch")),
}


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, beta, models, tmp_path):
    # Two updates of each batch, so that ratios leave 1 and some are clipped.
    their_arguments, our_keys = LOSSES[name]
    names = METRICS + (["kl"] if beta else []) + ([] if name == "cispo" else CLIPPED)
    compare(models, tmp_path, names, dict(beta=beta, num_iterations=2, steps_per_generation=1, **their_arguments),
            dict(beta=beta, num_iterations=2, **our_keys))


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_correction_of_the_sampler(mode, models, tmp_path):
    compare(models, tmp_path, METRICS, dict(beta=0.04, vllm_importance_sampling_mode=mode),
            dict(beta=0.04, importance_sampling_correction=mode), with_logprobs=True)
