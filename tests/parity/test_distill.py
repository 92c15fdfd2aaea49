"""Distillation against TRL's GKDTrainer on the same rows, and against plain sums in double."""

import json
import pathlib
import random

import pytest
import torch
from conftest import relative_difference, run_to_end, settings_of, write_model
from pairs import encoded_rows, load, write_preference_data
from tolerance import ADAM_EPSILON, TOLERANCE

NUM_STEPS = 5
GROUPS, GENERATIONS = 2, 3  # of a step
OPTIMIZER = dict(learning_rate=1e-3, adam_epsilon=ADAM_EPSILON, max_steps=NUM_STEPS, lr_scheduler_type="linear",
                 weight_decay=0.1)
IGNORE = -100


def models_in(folder, kind="qwen2"):
    """A student, and a teacher of other heads and another size."""
    student = write_model(folder / kind, kind)
    teacher = write_model(folder / "teacher", "qwen2", num_hidden_layers=3, hidden_size=96, num_attention_heads=6,
                          num_key_value_heads=3, initializer_range=0.1)
    return student, teacher


def make_rollouts(path, vocab_size, with_teacher=False, seed=4):
    """Batches of rows (ids, number of prompt tokens), in the order of the file."""
    rng = random.Random(seed)

    def ids(least, most):
        return [rng.randrange(5, vocab_size) for _ in range(rng.randint(least, most))]

    batches, lines = [], []
    for batch in range(NUM_STEPS):
        rows = []
        for number in range(GROUPS):
            prompt = ids(5, 30)
            for _ in range(GENERATIONS):
                answer = ids(1, 25)
                teacher = [-4 - 2 * rng.random() for _ in answer]
                rows.append((prompt + answer, len(prompt), teacher))
                line = dict(group=f"{batch}.{number}", prompt_ids=prompt, completion_ids=answer)
                if with_teacher:
                    line["teacher_logprobs"] = teacher
                lines.append(json.dumps(line))
        batches.append(rows)
    path.write_text("\n".join(lines) + "\n")
    return batches


def ours(folder, student, **keys):
    settings = settings_of(student, folder, folder / "ours", stage="distill") | OPTIMIZER
    for key in ("dataset", "dataset_dir"):
        settings.pop(key)
    settings |= dict(rollouts=str(folder / "rollouts.jsonl"), num_generations=GENERATIONS,
                     per_device_train_batch_size=GROUPS, gradient_accumulation_steps=1, cutoff_len=64)
    return settings | keys


def padded(rows):
    width = max(len(ids) for ids, *_ in rows)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, *_ in rows])
    labels = torch.full_like(ids, IGNORE)
    for i, (row, prompt, *_) in enumerate(rows):
        labels[i, prompt:len(row)] = ids[i, prompt:len(row)]
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row, *_ in rows])
    return dict(input_ids=ids, labels=labels, attention_mask=mask)


def label_logits(model, rows):
    """Logits of the positions that predict labels, row after row, and these labels."""
    batch = padded(rows)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    return logits[labels != IGNORE], labels[labels != IGNORE]


def plain_training(student, batches, loss_of, updates=1):
    """AdamW in double with clipped gradients and a linear schedule. Returns losses, norms and the model."""
    model = load(student).double()
    # As in transformers, biases and norms do not decay.
    groups = [dict(params=[p for p in model.parameters() if p.ndim > 1], weight_decay=OPTIMIZER["weight_decay"]),
              dict(params=[p for p in model.parameters() if p.ndim == 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, eps=ADAM_EPSILON)
    losses, norms = [], []
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER["learning_rate"] * (NUM_STEPS - step) / NUM_STEPS
        loss = loss_of(model, batches[step // updates], step % updates)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms, model


def assert_same(finished, losses, norms, model=None):
    assert relative_difference(finished.logged("loss"), losses) < TOLERANCE
    assert relative_difference(finished.logged("grad_norm"), norms) < TOLERANCE
    if model is None:
        return
    trained = load(finished.output_dir)
    for (name, value), (_, expected) in zip(trained.named_parameters(), model.named_parameters()):
        difference = (value.double() - expected.double()).norm()
        # A key's bias changes no softmax, so that it only has the gradient of roundings.
        assert float(difference / expected.double().norm()) < TOLERANCE, name


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_gkd(beta, tmp_path):
    """TRL's GKDTrainer in double on the rollouts, of which each is a row of its own there."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    student, teacher = models_in(tmp_path)
    batches = make_rollouts(tmp_path / "rollouts.jsonl", json.loads((student / "config.json").read_text())["vocab_size"])

    class OnTokens(GKDTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

    columns = [dict(ids=ids, prompt=prompt) for rows in batches for ids, prompt, _ in rows]
    trainer = OnTokens(
        model=load(student).double(), teacher_model=load(teacher).double(),
        args=GKDConfig(output_dir=str(tmp_path / "trl"), logging_steps=1, report_to=[], save_strategy="no", use_cpu=True,
                       bf16=False, gradient_checkpointing=False, disable_tqdm=True, lmbda=0.0, seq_kd=False, beta=beta,
                       per_device_train_batch_size=GROUPS * GENERATIONS, gradient_accumulation_steps=1,
                       train_sampling_strategy="sequential", **OPTIMIZER),
        data_collator=lambda rows: padded([(row["ids"], row["prompt"]) for row in rows]),
        train_dataset=Dataset.from_list(columns), processing_class=AutoTokenizer.from_pretrained(student))
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    finished = run_to_end(ours(tmp_path, student, ref_model=str(teacher), distill_beta=beta, plot_loss=True))
    assert_same(finished, [entry["loss"] for entry in log], [entry["grad_norm"] for entry in log], trainer.model)
    drawn = {path.name.removeprefix("training_") for path in finished.output_dir.glob("*.png")}
    assert drawn == {"loss.png", "completions_mean_length.png", "completions_clipped_ratio.png"}


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_temperature_and_top_k(beta, tmp_path):
    """The k tokens and the tail as outcomes, in double."""
    student, teacher = models_in(tmp_path)
    batches = make_rollouts(tmp_path / "rollouts.jsonl", json.loads((student / "config.json").read_text())["vocab_size"])
    reference, k = load(teacher).double(), 7

    def loss_of(model, rows, _):
        logits, _ = label_logits(model, rows)
        with torch.no_grad():
            others, _ = label_logits(reference, rows)
        student, teacher = torch.softmax(logits / 2, -1), torch.softmax(others / 2, -1)
        sums = []
        for p, q in zip(student, teacher):  # p: of the student
            chosen = set()
            if beta > 0:
                chosen |= set(p.topk(k).indices.tolist())
            if beta < 1:
                chosen |= set(q.topk(k).indices.tolist())
            index = torch.tensor(sorted(chosen))
            P = torch.cat([p[index], 1 - p[index].sum(0, keepdim=True)])
            Q = torch.cat([q[index], 1 - q[index].sum(0, keepdim=True)])
            M = beta * Q + (1 - beta) * P
            if beta in (0, 1):
                sums.append((Q * (Q / P).log()).sum() if beta == 0 else (P * (P / Q).log()).sum())
            else:
                sums.append(beta * (Q * (Q / M).log()).sum() + (1 - beta) * (P * (P / M).log()).sum())
        return torch.stack(sums).mean()

    losses, norms, model = plain_training(student, batches, loss_of)
    finished = run_to_end(ours(tmp_path, student, ref_model=str(teacher), distill_beta=beta, distill_top_k=k,
                               distill_temperature=2))
    assert_same(finished, losses, norms, model)


@pytest.mark.parametrize("updates", [1, 2])
def test_teacher_in_the_file(updates, tmp_path):
    """log p of the teacher minus log p of the policy is the advantage of a token."""
    student, _ = models_in(tmp_path)
    batches = make_rollouts(tmp_path / "rollouts.jsonl",
                            json.loads((student / "config.json").read_text())["vocab_size"], with_teacher=True)
    before = {}

    def loss_of(model, rows, update):
        logits, labels = label_logits(model, rows)
        logp = torch.log_softmax(logits, -1).gather(1, labels[:, None])[:, 0]
        teacher = torch.tensor([number for *_, numbers in rows for number in numbers], dtype=torch.double)
        old = before.setdefault(id(rows), logp.detach())
        ratio = (logp - old).exp()
        advantage = teacher - old
        return -torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.2) * advantage).mean()

    losses, norms, model = plain_training(student, batches, loss_of, updates)
    # The ratio of a single update is 1, and clipping is refused there.
    clips = dict(epsilon=0.1, epsilon_high=0.2) if updates > 1 else {}
    finished = run_to_end(ours(tmp_path, student, num_iterations=updates, **clips))
    assert_same(finished, losses, norms, model)
    assert finished.logged("kl")[0] == pytest.approx(losses[0], rel=TOLERANCE)


RANKS = [
    dict(sequence_parallel_size=2),
    dict(sequence_parallel_size=3, sequence_parallel_mode="zigzag-ring", distill_top_k=5),
    dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses", distill_beta=1.0),
    dict(num_ranks=2, per_device_train_batch_size=1),
    dict(num_ranks=4, sequence_parallel_size=2, per_device_train_batch_size=1, zero_stage=3),
    dict(sequence_parallel_size=2, finetuning_type="lora", gradient_accumulation_steps=2, per_device_train_batch_size=1),
    dict(sequence_parallel_size=2, ref_model=""),
]
SPLIT = ("sequence_parallel_size", "sequence_parallel_mode", "per_device_train_batch_size",
         "gradient_accumulation_steps", "zero_stage")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("keys", RANKS, ids=lambda keys: "-".join(str(value) for value in keys.values()))
@pytest.mark.parametrize("kind", ["qwen2", "qwen3_5"])
def test_ranks_change_nothing(kind, keys, tmp_path):
    student, teacher = models_in(tmp_path, kind)
    keys = dict(ref_model=str(teacher)) | keys
    make_rollouts(tmp_path / "rollouts.jsonl", json.loads((student / "config.json").read_text())["vocab_size"],
                  with_teacher=not keys["ref_model"])
    ranks = keys.pop("num_ranks", keys.get("sequence_parallel_size", 1))
    one = run_to_end(ours(tmp_path, student, **{key: value for key, value in keys.items() if key not in SPLIT}))
    many = run_to_end(ours(tmp_path, student, **keys) | dict(output_dir=str(tmp_path / "many")), ranks)
    assert_same(many, one.logged("loss"), one.logged("grad_norm"))
    if "sequence_parallel_size" in keys:
        check_traffic(many, directions=3 if keys["ref_model"] else 2)


def check_traffic(run, directions):
    """Measured bytes equal the formula; the teacher's passes are counted separately."""
    report = json.loads((run.output_dir / "sequence_parallel.json").read_text())["bytes_per_layer"]
    assert list(report) == ["forward", "backward", "reference"][:directions]
    for sent in report.values():
        assert sent["measured"] == sent["formula"] > 0, report
    assert ("reference" in run.texts[0].split("Sent to other processes")[1]) == (directions == 3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_answers_of_a_data_set(ranks, tmp_path):
    """stage distill_sft, with packing and evaluation: the divergence of the answers' tokens."""
    student, teacher = models_in(tmp_path)
    data = write_preference_data(pathlib.Path(tmp_path))
    settings = settings_of(student, data, tmp_path / "run", stage="distill_sft", ref_model=str(teacher)) | OPTIMIZER | dict(
        distill_beta=0.0, neat_packing=True, cutoff_len=256, gradient_accumulation_steps=1, disable_shuffling=True,
        eval_dataset="chats", do_eval=True, sequence_parallel_size=ranks)
    finished = run_to_end(settings, ranks)
    unpacked = settings_of(student, data, tmp_path / "probe") | dict(cutoff_len=256, template=settings.get("template"))
    rows = [(prompt + answer, len(prompt)) for ((prompt, answer),), _ in
            encoded_rows({key: value for key, value in unpacked.items() if value is not None}, tmp_path)]
    with torch.no_grad():
        trained, reference = load(finished.output_dir).double(), load(teacher).double()
        (own, _), (others, _) = label_logits(trained, rows), label_logits(reference, rows)
        theirs = torch.log_softmax(others, -1)
        expected = float((theirs.exp() * (theirs - torch.log_softmax(own, -1))).sum(-1).mean())
    evaluated = json.loads((finished.output_dir / "eval_results.json").read_text())
    assert evaluated["eval_loss"] == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("keys, sentence", [
    (dict(stage="distill_sft"), "ref_model is missing: give the teacher"),
    (dict(distill_beta=0.2), "distill_beta: 0.2 has no effect without ref_model"),
    (dict(rollout="self"), "ref_model is missing: give the teacher"),
])
def test_what_is_refused(keys, sentence, tmp_path):
    from conftest import Running

    student, _ = models_in(tmp_path)
    make_rollouts(tmp_path / "rollouts.jsonl", 90, with_teacher=True)
    refused = Running(ours(tmp_path, student, **keys)).wait()
    assert set(refused.statuses) != {0}
    assert refused.text.count(sentence) == 1, refused.text
