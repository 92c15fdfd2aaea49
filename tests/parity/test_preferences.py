"""Losses of pairs and verdicts against TRL's trainers, and where it has none against the formulas in fp64."""

import math
import shutil

import pytest
import torch
from conftest import relative_difference, run_to_end, settings_of
from pairs import encoded_rows, load, pair_columns, trl_run, write_preference_data
from shared import made_once
from test_trainer import WEIGHTS
from tolerance import ADAM_EPSILON, TOLERANCE, of_log_ratio

NUM_STEPS = 10
REWARDS = [f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins")]
LOGPS = ["logps/chosen", "logps/rejected"]
HINGE_RATE = 6e-4
OPTIMIZER = dict(learning_rate=1e-3, adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, lr_scheduler_type="linear",
                 weight_decay=0.1)


@pytest.fixture(scope="module")
def preferences(place):
    return str(made_once(place / "preferences", write_preference_data))


def settings_for(stage, model, data, folder, **keys):
    settings = settings_of(model, data, folder / "ours", stage=stage) | OPTIMIZER
    settings |= dict(dataset="verdicts" if stage == "kto" else "pairs", disable_shuffling=True)
    return settings | keys


def run(settings):
    return run_to_end(settings)


def assert_same(finished, theirs, names, steps=NUM_STEPS):
    """Loss, grad_norm and names ({ours: theirs}) of a peer in double; rewards are differences of log-probabilities."""

    def column(key):
        return [entry[key] for entry in theirs]

    losses = finished.logged("loss")
    assert len(losses) == steps and len(set(losses)) == steps
    assert relative_difference(losses, column("loss")) < TOLERANCE
    assert relative_difference(finished.logged("grad_norm"), column("grad_norm")) < TOLERANCE
    # A reward model's are numbers about 1.
    allowed = of_log_ratio(finished.logged("logps/chosen")) if LOGPS[0] in names else TOLERANCE
    for ours, name in names.items():
        assert finished.logged(ours) == pytest.approx(column(name), rel=TOLERANCE, abs=allowed), ours


def same_names(names):
    return {name: name for name in names}


# ---------------------------------------------------------------- TRL's DPOTrainer

DPO = {
    # A margin, and relatively a small loss, is apart by beta times what log-probabilities in the hundreds are.
    "sigmoid": (2, dict(pref_loss="sigmoid", pref_beta=0.05), dict(loss_type=["sigmoid"], beta=0.05)),
    "hinge": (2, dict(pref_loss="hinge"), dict(loss_type=["hinge"])),
    "ipo": (2, dict(pref_loss="ipo"), dict(loss_type=["ipo"])),
    "shared_prompt": (2, dict(pref_share_prompt=True), dict(loss_type=["sigmoid"])),
    # TRL smooths no sigmoid; with one pair in a batch its aot_unpaired, which sorts a batch, is that loss.
    "smoothed": (
        1,
        dict(pref_loss="sigmoid", dpo_label_smoothing=0.2),
        dict(loss_type=["aot_unpaired"], label_smoothing=0.2),
    ),
    # TRL's mean is over a batch's tokens, LLaMA-Factory's over each answer's: one pair in a batch.
    "ftx": (
        1,
        dict(pref_loss="sigmoid", pref_ftx=0.7),
        dict(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.7]),
    ),
}


@pytest.mark.parametrize("name", DPO)
def test_dpo(name, models, preferences, tmp_path):
    from trl import DPOConfig, DPOTrainer

    batch, ours, theirs = DPO[name]
    shared = dict(per_device_train_batch_size=batch, gradient_accumulation_steps=4 // batch)
    if name == "hinge":
        # A loss near 0 is a difference of log-probabilities in the hundreds: fp32 has no 1e-5 of it.
        shared["learning_rate"] = HINGE_RATE
    kind = "llama" if name == "hinge" else "qwen2"
    settings = settings_for("dpo", models[kind], preferences, tmp_path, **ours) | shared
    finished = run(settings)
    columns = pair_columns(encoded_rows(settings, tmp_path))
    arguments = OPTIMIZER | shared | theirs
    theirs = trl_run(DPOTrainer, DPOConfig, load(models[kind]), columns, tmp_path, **arguments)
    # As LLaMA-Factory's, an averaging loss logs averages; TRL logs ipo's sums.
    assert_same(finished, theirs, same_names([] if name == "ipo" else REWARDS + LOGPS))
    margins = finished.logged("rewards/margins")
    assert margins[0] == 0 and all(margins[1:])
    if name == "hinge":
        # Pairs beyond the hinge are cut: without a cut the loss is 1 - margin.
        cut = [loss - (1 - margin) for loss, margin in zip(finished.logged("loss"), margins)]
        assert max(cut) > 0.01, cut


# ---------------------------------------------------------------- TRL's ORPOTrainer and CPOTrainer


def with_tokens_as_rows(trainer_class):
    """These trainers tokenize by a method for one row."""

    class OnTokens(trainer_class):
        def tokenize_row(self, feature, model=None):
            row = {}
            for name in ("chosen", "rejected"):
                prompt, answer = feature["prompt_ids"], feature[f"{name}_ids"]
                row[f"{name}_input_ids"] = prompt + answer
                row[f"{name}_attention_mask"] = [1] * len(prompt + answer)
                row[f"{name}_labels"] = [-100] * len(prompt) + answer
            return row

    return OnTokens


def text_columns(columns):
    """TRL's map over the rows asks for texts; they are not looked at."""
    return [row | dict(prompt="p", chosen="c", rejected="r") for row in columns]


def test_simpo(models, preferences, tmp_path):
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    shared = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2)
    ours = dict(pref_loss="simpo", pref_beta=2.0, simpo_gamma=0.8)
    settings = settings_for("dpo", models["qwen2"], preferences, tmp_path, **ours) | shared
    finished = run(settings)
    columns = text_columns(pair_columns(encoded_rows(settings, tmp_path)))
    arguments = OPTIMIZER | shared
    arguments |= dict(loss_type="simpo", beta=2.0, simpo_gamma=0.8, cpo_alpha=0.0)
    model = load(models["qwen2"])
    theirs = trl_run(CPOTrainer, CPOConfig, model, columns, tmp_path, with_tokens_as_rows, **arguments)
    assert_same(finished, theirs, same_names(REWARDS + LOGPS))


def test_orpo(models, preferences, tmp_path):
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    def prepare(trainer_class):
        class AnswersOnly(with_tokens_as_rows(trainer_class)):
            # The contract's (LLaMA-Factory's) first term is the chosen answers' mean log-probability;
            # TRL's also counts the prompts, and is a mean over a batch's tokens.
            def concatenated_forward(self, model, batch):
                chosen, rejected, *logits, _ = super().concatenated_forward(model, batch)
                return chosen, rejected, *logits, -chosen.mean()

        return AnswersOnly

    shared = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2)
    ours = dict(pref_loss="orpo", pref_beta=0.4)
    settings = settings_for("dpo", models["qwen2"], preferences, tmp_path, **ours) | shared
    finished = run(settings)
    columns = text_columns(pair_columns(encoded_rows(settings, tmp_path)))
    arguments = OPTIMIZER | shared | dict(beta=0.4)
    model = load(models["qwen2"])
    theirs = trl_run(ORPOTrainer, ORPOConfig, model, columns, tmp_path, prepare, **arguments)
    assert_same(finished, theirs, same_names(REWARDS + LOGPS) | {"sft_loss": "nll_loss"})
    log_odds = [-entry["log_odds_ratio"] for entry in theirs]
    assert finished.logged("odds_ratio_loss") == pytest.approx(log_odds, rel=TOLERANCE)


# ---------------------------------------------------------------- TRL's KTOTrainer


def test_kto(models, preferences, tmp_path):
    """TRL estimates KL by micro-batch, so a step is one; the mismatched answers are given to it."""
    from trl import KTOConfig, KTOTrainer

    shared = dict(per_device_train_batch_size=4, gradient_accumulation_steps=1)
    ours = dict(pref_beta=0.2, kto_chosen_weight=1.5, kto_rejected_weight=0.6)
    settings = settings_for("kto", models["qwen2"], preferences, tmp_path, **ours) | shared
    finished = run(settings)
    rows = encoded_rows(settings, tmp_path)
    columns = []
    for i, (((prompt, answer), (same_prompt, other)), desirable) in enumerate(rows):
        assert prompt == same_prompt and other == rows[i - 1][0][0][1] != answer
        assert desirable == (i % 3 != 1)
        columns.append(dict(prompt_ids=prompt, completion_ids=answer, KL_completion_ids=other, label=desirable))
    arguments = OPTIMIZER | shared
    arguments |= dict(beta=0.2, desirable_weight=1.5, undesirable_weight=0.6)
    theirs = trl_run(KTOTrainer, KTOConfig, load(models["qwen2"]), columns, tmp_path, **arguments)
    # 4 rows of which every third is bad: each step has both kinds.
    assert_same(finished, theirs, same_names(["kl", "rewards/chosen", "rewards/rejected"] + LOGPS))
    assert max(finished.logged("kl")) > 0.1, "KL is clamped at 0 in every step: the test sees nothing of it"


# ---------------------------------------------------------------- TRL's RewardTrainer


def test_reward_model(models, preferences, tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    folder = tmp_path / "model"
    shutil.copytree(models["qwen2"], folder)
    torch.manual_seed(5)
    weight = torch.randn(1, 112) * 0.1
    head = {"v_head.summary.weight": weight, "v_head.summary.bias": torch.zeros(1)}
    save_file(head, folder / "value_head.safetensors")
    shared = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2)
    settings = settings_for("rm", folder, preferences, tmp_path) | shared
    finished = run(settings)
    columns = [
        {name: row["prompt_ids"] + row[name] for name in ("chosen_ids", "rejected_ids")}
        for row in pair_columns(encoded_rows(settings, tmp_path))
    ]
    torch.set_num_threads(1)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.score.weight.data.copy_(weight)
    theirs = trl_run(RewardTrainer, RewardConfig, model, columns, tmp_path, **OPTIMIZER, **shared)
    assert_same(finished, theirs, {"rewards/accuracies": "accuracy", "rewards/margins": "margin"})
    means = [
        (chosen + rejected) / 2
        for chosen, rejected in zip(finished.logged("rewards/chosen"), finished.logged("rewards/rejected"))
    ]
    assert means == pytest.approx([entry["mean_reward"] for entry in theirs], rel=TOLERANCE, abs=TOLERANCE)
    # What was saved is the trained head, for whoever reads LLaMA-Factory's file.
    saved = load_file(finished.output_dir / "value_head.safetensors")
    moved = (model.score.weight - weight).norm()
    assert (saved["v_head.summary.weight"] - model.score.weight).norm() < WEIGHTS * moved
    assert saved["v_head.summary.bias"].abs() < TOLERANCE


# ---------------------------------------------------------------- formulas in fp64


def answer_logprob(model, prompt, answer):
    ids = torch.tensor([prompt + answer])
    logprobs = model(ids).logits[0, :-1].log_softmax(-1)
    return logprobs[len(prompt) - 1 :].gather(1, ids[0, len(prompt) :, None]).sum()


def kto_pair_loss(chosen, rejected, beta):
    """TRL 0.8.6's kto_pair on a whole step; gradients flow through its KL estimates."""
    chosen_kl, rejected_kl = chosen.mean().clamp(min=0), rejected.mean().clamp(min=0)
    first = 1 - torch.sigmoid(beta * (chosen - rejected_kl))
    second = 1 - torch.sigmoid(beta * (chosen_kl - rejected))
    return torch.cat([first, second]).mean()


@pytest.fixture(scope="module")
def other(models, place):
    """A model a little apart from models["qwen2"]."""
    def make(folder):
        shutil.copytree(models["qwen2"], folder)
        model = load(folder)
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.data.add_(0.01 * torch.randn_like(parameter))
        model.save_pretrained(folder)

    return made_once(place / "other", make)


class InFp64:
    """A policy and its reference; log-ratios of answers."""

    def __init__(self, policy, reference):
        self.policy, self.reference = [load(f, dtype=torch.float64) for f in (policy, reference)]

    def ratio(self, prompt, answer):
        with torch.no_grad():
            subtract = answer_logprob(self.reference, prompt, answer)
        return answer_logprob(self.policy, prompt, answer) - subtract

    def assert_first_step(self, finished, loss):
        loss.backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in self.policy.parameters()))
        (logged,) = [entry for entry in finished.history if "loss" in entry]
        assert logged["loss"] == pytest.approx(loss.item(), rel=TOLERANCE)
        assert logged["grad_norm"] == pytest.approx(norm, rel=TOLERANCE)
        return logged


ONE_STEP = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=1)


@pytest.mark.parametrize("swapped", [False, True])
def test_kto_pair_in_fp64(swapped, models, other, preferences, tmp_path):
    """A step of four pairs in two micro-batches. The reference is another model, so that the KL
    estimates are not 0; with policy and reference swapped they are clamped."""
    policy, reference = [other, models["qwen2"]] if swapped else [models["qwen2"], other]
    ours = dict(pref_loss="kto_pair", pref_beta=0.05, ref_model=str(reference))
    settings = settings_for("dpo", policy, preferences, tmp_path, **ours) | ONE_STEP
    finished = run(settings)
    rows = pair_columns(encoded_rows(settings, tmp_path))[:4]
    models64 = InFp64(policy, reference)
    chosen, rejected = [
        torch.stack([models64.ratio(row["prompt_ids"], row[name]) for row in rows])
        for name in ("chosen_ids", "rejected_ids")
    ]
    logged = models64.assert_first_step(finished, kto_pair_loss(chosen, rejected, 0.05))
    assert logged["rewards/chosen"] == pytest.approx(0.05 * chosen.mean().item(), rel=TOLERANCE)
    assert logged["rewards/rejected"] == pytest.approx(0.05 * rejected.mean().item(), rel=TOLERANCE)
    means = torch.stack([chosen.mean(), rejected.mean()])
    assert means.max() < -1 if swapped else means.min() > 1, means


@pytest.mark.parametrize("swapped", [False, True])
def test_kto_in_fp64(swapped, models, other, preferences, tmp_path):
    """KL is estimated over the step, not by micro-batch; pref_ftx as in LLaMA-Factory: the desirable
    answers' mean token loss, times answers over desirable answers."""
    policy, reference = [other, models["qwen2"]] if swapped else [models["qwen2"], other]
    ours = dict(pref_beta=0.05, kto_chosen_weight=1.3, pref_ftx=0.4, ref_model=str(reference))
    settings = settings_for("kto", policy, preferences, tmp_path, **ours) | ONE_STEP
    finished = run(settings)
    rows = encoded_rows(settings, tmp_path)[:4]
    models64 = InFp64(policy, reference)
    with torch.no_grad():
        kl = torch.stack([models64.ratio(*mismatched) for (_, mismatched), _ in rows]).mean()
    assert kl < -1 if swapped else kl > 1, kl
    losses, token_losses = [], []
    for (document, _), desirable in rows:
        margin = 0.05 * (models64.ratio(*document) - kl.clamp(min=0))
        losses.append(1.3 * (1 - torch.sigmoid(margin)) if desirable else 1 - torch.sigmoid(-margin))
        if desirable:
            token_losses.append(-answer_logprob(models64.policy, *document) / len(document[1]))
    num_desirable = len(token_losses)
    assert 0 < num_desirable < 4
    loss = torch.stack(losses).mean() + 0.4 * torch.stack(token_losses).mean() * 4 / num_desirable
    logged = models64.assert_first_step(finished, loss)
    assert logged["kl"] == pytest.approx(max(0.0, kl.item()), rel=TOLERANCE)
