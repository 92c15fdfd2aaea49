"""Training on rollouts against TRL's GRPOTrainer and RLOOTrainer, which get the same rollouts and rewards."""

import json
import pathlib
import random

import pytest
import torch
from conftest import relative_difference, run_to_end, settings_of, write_model
from pairs import load
from tolerance import ADAM_EPSILON, TOLERANCE

NUM_STEPS = 5
GROUPS, GENERATIONS = 2, 4  # of a step
OPTIMIZER = dict(learning_rate=1e-3, adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, lr_scheduler_type="linear",
                 weight_decay=0.1)
METRICS = ["reward", "frac_reward_zero_std", "entropy"]
CLIPPED = ["clip_ratio/low_mean", "clip_ratio/high_mean"]
THEIR_NAMES = {"sampling/logp_difference": "sampling/sampling_logp_difference/mean",
               "sampling/importance_ratio": "sampling/importance_sampling_ratio/mean"}


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
            texts = ["text"] * len(answers)
            if not hasattr(trainer_class, "get_high_entropy_mask"):  # RLOOTrainer
                return prompt_ids, answers, texts
            return prompt_ids, answers, None, texts, sampled, {}, None, None

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


def assert_same(finished, log, names, tolerance=TOLERANCE):
    losses, expected = finished.logged("loss"), [entry["loss"] for entry in log]
    assert len(losses) == NUM_STEPS
    # The loss of a batch is about 0 with a ratio of 1: the advantages sum to 0, so its size is that of its terms.
    assert losses == pytest.approx(expected, rel=tolerance, abs=tolerance)
    assert relative_difference(finished.logged("grad_norm"), [entry["grad_norm"] for entry in log]) < tolerance
    for name in names:
        # TRL logs rewards and the sampler's difference in the first update of a batch only.
        theirs = THEIR_NAMES.get(name, name)
        pairs = [(own, entry[theirs]) for own, entry in zip(finished.logged(name), log) if theirs in entry]
        assert pairs, name
        for own, expected in pairs:
            assert own == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE), name


def compare(models, tmp_path, names, their_arguments, our_keys, with_logprobs=False, trainer="GRPO", reuse=1, tolerance=TOLERANCE):
    import trl

    folder = pathlib.Path(models["qwen2"])
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    batches = make_rollouts(vocab)
    write_rollouts(tmp_path / "rollouts.jsonl", batches, with_logprobs)
    log, model = theirs(getattr(trl, f"{trainer}Trainer"), getattr(trl, f"{trainer}Config"), tmp_path, folder, batches,
                        with_logprobs, **their_arguments)
    finished = run_to_end(ours(tmp_path, folder, **our_keys))
    assert_same(finished, log, names, tolerance)
    trained = load(finished.output_dir)
    for (name, value), (_, expected) in zip(trained.named_parameters(), model.named_parameters()):
        assert float((value.double() - expected.double()).norm() / expected.double().norm()) < TOLERANCE, name


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


@pytest.mark.thinned(2)
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, beta, models, tmp_path):
    # Two updates of each batch, so that ratios leave 1 and some are clipped.
    their_arguments, our_keys = LOSSES[name]
    names = METRICS + (["kl"] if beta else []) + ([] if name in ("cispo", "gspo") else CLIPPED)
    compare(models, tmp_path, names, dict(beta=beta, num_iterations=2, steps_per_generation=1, **their_arguments),
            dict(beta=beta, num_iterations=2, **our_keys))


@pytest.mark.parametrize("keys", [
    dict(epsilon=0.005, epsilon_high=0.005, delta=1.01),
    dict(loss_type="grpo", use_bias_correction_kl=False),
    dict(loss_type="grpo", importance_sampling_level="sequence", epsilon=0.005, epsilon_high=0.005, delta=1.01,
         use_bias_correction_kl=False),
], ids=["delta", "plain KL", "both, of rollouts"])
def test_bounds_and_plain_kl(keys, models, tmp_path):
    keys = dict(loss_type="dapo", beta=0.04, num_iterations=2) | keys
    compare(models, tmp_path, METRICS + ["kl"], keys | dict(steps_per_generation=1), keys)


# The factor of a rollout is the exponential of a sum over up to 25 tokens, whose log-probabilities of about 5 in fp32 are
# each off by up to two units in the last place of fp32, 2**-20.
TOLERANCE_OF_SEQUENCES = TOLERANCE + 25 * 2**-20

# Every loss with and without KL, with one and two updates; every mode with two of the losses at least.
@pytest.mark.parametrize("name, beta, updates, mode, least", [
    ("grpo", 0.0, 1, "token_truncate", 0.7),
    ("grpo", 0.04, 2, "sequence_mask", None),
    ("bnpo", 0.0, 2, "token_mask", 0.6),
    ("bnpo", 0.04, 1, "sequence_truncate", 0.001),
    ("dr_grpo", 0.0, 1, "sequence_mask", None),
    ("dr_grpo", 0.04, 2, "token_truncate", None),
    ("dapo", 0.0, 2, "sequence_truncate", None),
    ("dapo", 0.04, 1, "token_mask", None),
    ("gspo", 0.0, 2, "sequence_mask", None),
    ("gspo", 0.04, 1, "token_truncate", None),
    ("cispo", 0.0, 1, "token_mask", None),
    ("cispo", 0.04, 2, "sequence_truncate", None),
])
def test_correction_of_the_sampler(name, beta, updates, mode, least, models, tmp_path):
    their_arguments, our_keys = LOSSES[name]
    if updates == 1 and name != "cispo":  # bounds of a ratio of 1
        our_keys = {key: value for key, value in our_keys.items() if not key.startswith("epsilon")}
    bound = dict(importance_sampling_clip_min=least) if least else {}
    # TRL's mean of factors is over rollouts where a factor is of a rollout.
    names = METRICS + ["sampling/logp_difference"] + (["sampling/importance_ratio"] if mode.startswith("token") else [])
    compare(models, tmp_path, names,
            dict(beta=beta, num_iterations=updates, steps_per_generation=1, vllm_importance_sampling_mode=mode,
                 **{f"vllm_{key}": value for key, value in bound.items()}) | their_arguments,
            dict(beta=beta, num_iterations=updates, importance_sampling_correction=mode) | bound | our_keys,
            with_logprobs=True, tolerance=TOLERANCE_OF_SEQUENCES if mode.startswith("sequence") else TOLERANCE)


def test_rloo(models, tmp_path):
    # The ratio is that of a whole answer. At a rate of 1e-3 the second update clips seven answers of eight: its gradient is
    # then 12 times smaller than that of the first, and its rounding above TOLERANCE on AVX-512.
    rate = dict(learning_rate=2e-4)
    compare(models, tmp_path, METRICS[:2], dict(beta=0.05, num_iterations=2, steps_per_generation=1) | rate,
            dict(loss_type="rloo", beta=0.05, num_iterations=2) | rate, trainer="RLOO")


def test_entropy_and_truncation(models, tmp_path):
    """TRL tells truncated answers by their last token: here by the flag of a rollout."""
    import trl

    folder = pathlib.Path(models["qwen2"])
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    batches = make_rollouts(vocab)
    write_rollouts(tmp_path / "rollouts.jsonl", batches)
    eos = load(folder).generation_config.eos_token_id
    cut = {tuple(answer): flag for groups in batches for group in groups
           for answer, flag in zip(group["answers"], group["truncated"])}

    class Marked(trl.GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            made = super()._generate_and_score_completions(inputs)
            for i, ids in enumerate(made["completion_ids"]):
                answer = tuple(ids[made["completion_mask"][i].bool()].tolist())
                if cut[answer]:
                    made["completion_mask"][i] = 0
            made["num_items_in_batch"] = made["completion_mask"].sum()
            return made

    assert eos is not None
    log, _ = theirs(Marked, trl.GRPOConfig, tmp_path, folder, batches, top_entropy_quantile=0.4)
    finished = run_to_end(ours(tmp_path, folder, top_entropy_quantile=0.4, mask_truncated_completions=True))
    assert_same(finished, log, ["entropy"])


def tree_rollouts(path, vocab_size, seed=9):
    """Groups with turns that fork: parents whose answers several rollouts continue."""
    rng = random.Random(seed)

    def ids(least, most):
        return [rng.randrange(5, vocab_size) for _ in range(rng.randint(least, most))]

    lines = []
    for group in range(NUM_STEPS * GROUPS):
        prompt = ids(5, 20)
        for number, parent in enumerate(["", "0", "0", "2"]):
            tool, answer = ([] if not parent else ids(1, 4)), ids(2, 12)
            begin = tool if parent else prompt
            lines.append(json.dumps(dict(
                id=f"{group}.{number}", group=str(group), token_ids=begin + answer,
                mask=[0] * len(begin) + [1] * len(answer), reward=round(rng.uniform(-1, 1), 3),
                logprobs=[0.0] * len(begin) + [-4 - rng.random() for _ in answer], policy_version=0,
                **({"parent": f"{group}.{parent}"} if parent else {}))))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("keys", [
    dict(sequence_parallel_size=2, beta=0.04, num_iterations=2),
    dict(sequence_parallel_size=3, loss_type="gspo", sequence_parallel_mode="llama3"),
    dict(sequence_parallel_size=2, loss_type="rloo", beta=0.1, sequence_parallel_mode="zigzag-ring"),
    dict(sequence_parallel_size=2, top_entropy_quantile=0.5, scale_rewards="batch", per_device_train_batch_size=1,
         gradient_accumulation_steps=2),
    dict(num_ranks=2, per_device_train_batch_size=1, loss_type="reinforce_plus_plus_baseline", beta=0.02),
    dict(num_ranks=4, sequence_parallel_size=2, per_device_train_batch_size=1, zero_stage=3),
], ids=lambda keys: "-".join(str(value) for value in keys.values()))
@pytest.mark.parametrize("kind", ["qwen2", "qwen3_5"])
def test_ranks_change_nothing(kind, keys, tmp_path):
    """Trees under sequence parallelism, data parallelism and accumulation equal one rank."""
    folder = write_model(tmp_path / kind, kind)
    config = json.loads((folder / "config.json").read_text())
    tree_rollouts(tmp_path / "rollouts.jsonl", config["vocab_size"])
    keys = dict(keys)
    ranks = keys.pop("num_ranks", keys.get("sequence_parallel_size", 1))
    split = ("sequence_parallel_size", "sequence_parallel_mode", "per_device_train_batch_size",
             "gradient_accumulation_steps", "zero_stage")
    alone = {key: value for key, value in keys.items() if key not in split}
    one = run_to_end(ours(tmp_path, folder, **alone))
    many = run_to_end(ours(tmp_path, folder, **keys) | dict(output_dir=str(tmp_path / "many")), ranks)
    assert many.logged("loss") == pytest.approx(one.logged("loss"), rel=TOLERANCE, abs=TOLERANCE)
    assert relative_difference(many.logged("grad_norm"), one.logged("grad_norm")) < TOLERANCE
    for name in ("reward", "entropy", "completions/mean_length"):
        assert many.logged(name) == pytest.approx(one.logged(name), rel=TOLERANCE), name
