"""longspan.Session: losses in Python beside the stage's own, on one and two ranks, and what a program may do wrong."""

import math
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from conftest import free_port
from ranks import BUILT, run_ranks
from tolerance import ADAM_EPSILON, PASS, ROUNDING, of_training

NUM_STEPS, RATE = 3, 1e-3


def config_of(model, **keys):
    return dict(model_name_or_path=model, learning_rate=RATE, finetuning_type="full", device="cpu", cutoff_len=64,
                adam_epsilon=ADAM_EPSILON, ddp_timeout=60) | keys


def open_session(config, rank=0, size=1, port=0, **keys):
    import longspan

    if size > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(port))
    return longspan.Session(config, overrides=dict(sequence_parallel_size=size), **keys)


def samples_of(step):
    """Two documents with a weight for each token."""
    import longspan

    generator = torch.Generator().manual_seed(step)
    ids = [torch.randint(0, 400, (length,), generator=generator) for length in (31, 18)]
    return [longspan.Sample(x, columns=dict(weight=torch.rand(len(x), generator=generator))) for x in ids]


def train(session, loss=None, num_steps=NUM_STEPS, **keys):
    """Losses, norms, and the gradients of the first step."""
    losses, norms, gradients = [], [], {}
    for _ in range(num_steps):
        row = session.row(samples_of(session.step))
        total = session.count([row]).weight
        parts = session.forward_backward([row], None if loss is None else lambda given: loss(given, total), **keys)
        losses.append(session.sum_up(parts))
        norms.append(session.reduce())
        gradients = gradients or {name: x.grad.clone() for name, x in session.parameters().items()}
        session.clip(norms[-1], 1.0)
        session.update(RATE)
    return losses, norms, gradients


def mean_of(given, total):
    return -given.logprobs.sum() / total


def weighted(given, total):
    return -(given.columns["weight"] * given.logprobs).sum() / total


def squared(given, total):
    # No sum over labels: needs the sum over the row before the square.
    return given.sum_over_row(given.hidden.double().sum() / 1000).square()


def trained(rank, size, port, model, loss, keys):
    with open_session(config_of(model), rank, size, port) as session:
        results = train(session, loss, **keys)
        if rank < size - 1:
            time.sleep(1)  # the last rank opens its next session while the first one of rank 0 still exists
        return results


def same(ours, theirs):
    """Losses and norms of all steps, gradients of the first."""
    for values, others in zip(ours[:2], theirs[:2]):
        assert len(values) == len(others) == NUM_STEPS
        assert values == pytest.approx(others, rel=of_training(NUM_STEPS, RATE), abs=0)
    assert ours[2].keys() == theirs[2].keys() and len(ours[2]) > 10
    for name, gradient in ours[2].items():
        assert (gradient - theirs[2][name]).norm() <= PASS * ROUNDING * ours[1][0], name


def test_a_loss_in_python_is_that_of_the_stage(models):
    alone = trained(0, 1, 0, models["qwen2"], None, {})
    in_python = trained(0, 1, 0, models["qwen2"], mean_of, {})
    same(in_python, alone)
    assert in_python[0][0] == pytest.approx(alone[0][0], rel=1e-12)  # of the same weights: the sums are in fp64
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        again = trained(0, 1, 0, models["qwen2"], mean_of, {})
    assert again[:2] == in_python[:2]  # to the bit


LOSSES = [(weighted, {}), (squared, dict(reads="hidden", whole_row=True))]


def losses_on_ranks(rank, size, port, model):
    import longspan

    # run_ranks is no launcher: nothing names the ranks yet.
    with pytest.raises(longspan.UsageError, match="has 2 ranks, and the environment of this process names 1"):
        open_session(config_of(model))
    return [trained(rank, size, port, model, *loss) for loss in LOSSES]


def test_losses_in_python_are_the_same_on_two_ranks(models):
    """Two sessions after each other."""
    for ours in run_ranks(2, losses_on_ranks, 2, free_port(), models["qwen2"]):
        for shared, loss in zip(ours, LOSSES, strict=True):
            alone = trained(0, 1, 0, models["qwen2"], *loss)
            assert alone[0][0] != alone[0][-1]
            same(shared, alone)


def test_pairs(models):
    """Before the first update the policy is the reference, so the loss of dpo is log 2."""
    import longspan

    with open_session(config_of(models["qwen2"], stage="dpo")) as session:
        row = session.row([longspan.Example([longspan.Sample(x.input_ids) for x in samples_of(0)])])
        assert session.count([row]).weight == 1
        assert session.sum_up(session.forward_backward([row])) == pytest.approx(math.log(2), rel=1e-6)
        session.drop()
        assert session.step == 1 and session.means()["rewards/accuracies"] == 0.0


def test_a_checkpoint_continues_with_the_same_bits(models, tmp_path):
    whole = trained(0, 1, 0, models["qwen2"], weighted, {})
    with open_session(config_of(models["qwen2"])) as session:
        train(session, weighted, num_steps=1)
        checkpoint = session.save_checkpoint(tmp_path, "place 7")
    with open_session(config_of(models["qwen2"])) as session:
        assert session.load_checkpoint(checkpoint) == "place 7" and session.step == 1
        losses, norms, _ = train(session, weighted, num_steps=NUM_STEPS - 1)
    assert (losses, norms) == (whole[0][1:], whole[1][1:])


def test_results(models, tmp_path):
    from transformers import AutoModelForCausalLM

    import longspan

    class Saved(longspan.Callback):
        folders = []

        def on_save(self, folder):
            self.folders.append(folder)

    config = tmp_path / "config.yaml"
    config.write_text("".join(f"{key}: {value}\n" for key, value in config_of(models["qwen2"]).items()))
    with longspan.Session(config, overrides=["weight_decay=0.1"], callbacks=[Saved()]) as session:
        train(session, num_steps=1)
        samples = samples_of(1)
        logprobs = session.label_logprobs(session.row(samples))
        assert len(logprobs) == sum(len(x.input_ids) for x in samples) - 2
        evaluation = session.evaluate(samples, batch_size=2)
        assert evaluation.loss == pytest.approx(-logprobs.mean().item(), rel=1e-12) and evaluation.num_samples == 2
        prompts = [[1, 2, 3], [5, 6]]
        answers = session.generate(prompts, max_new_tokens=6, logprobs=True)
        session.save(tmp_path / "trained")
    assert Saved.folders == [str(tmp_path / "trained")]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer.tokens])
        scores = model(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        assert scores.argmax(-1).tolist() == answer.tokens and answer.reason == "length"
        assert scores.max(-1).values.tolist() == pytest.approx(answer.logprobs, abs=1e-4)


def test_other_threads_run_while_a_row_computes(models):
    import longspan

    numbers, ended = [0], threading.Event()

    def count():
        while not ended.wait(0.001):
            numbers[0] += 1

    with open_session(config_of(models["qwen2"])) as session:
        row = session.row([longspan.Sample([i % 400 for i in range(2000)])])
        thread = threading.Thread(target=count)
        thread.start()
        before = numbers[0]
        session.label_logprobs(row)
        counted = numbers[0] - before
        ended.set()
        thread.join()
    assert counted >= 5


def test_exceptions_of_a_loss(models):
    import longspan

    with open_session(config_of(models["qwen2"])) as session:
        row = session.row(samples_of(0))

        def refused(loss, kind):
            with pytest.raises(kind) as caught:
                session.forward_backward([row], loss)
            session.drop()
            return caught.value

        mine = KeyError("mine")

        def fails(given):
            raise mine

        kept = []
        assert refused(fails, KeyError) is mine
        assert "shape [47]" in str(refused(lambda given: given.logprobs, longspan.UsageError))
        assert "without a gradient" in str(refused(lambda given: torch.zeros(()), longspan.UsageError))
        assert "returned None" in str(refused(lambda given: None, longspan.UsageError))
        session.forward_backward([row], lambda given: kept.append(given) or given.logprobs.sum())
        with pytest.raises(longspan.UsageError, match="only while the loss function runs"):
            kept[0].sum_over_row(torch.zeros(1))
        session.drop()
        session.step = 0
        assert train(session, mean_of)[:2] == trained(0, 1, 0, models["qwen2"], mean_of, {})[:2]


def test_mistakes(models):
    import longspan

    def refused(text, function, *arguments, **keys):
        with pytest.raises(longspan.UsageError) as caught:
            function(*arguments, **keys)
        assert text in str(caught.value), caught.value

    refused("config: unknown key learning_rat", longspan.Session, config_of(models["qwen2"], learning_rat=1))
    refused("no_such_model", longspan.Session, config_of("no_such_model"))
    refused("wanted are strings, numbers", longspan.Session, config_of({1, 2}))
    Sample = longspan.Sample
    with open_session(config_of(models["qwen2"])) as session:
        foreign = session.row([Sample([1, 2])])
    with open_session(config_of(models["qwen2"])) as session:
        for function in (session.count, session.forward_backward, lambda rows: session.forward_backward(rows, mean_of),
                         lambda rows: session.label_logprobs(*rows)):
            refused("a row is of another session", function, [foreign])
        own = session.row([Sample([1, 2, 3])])
        for weight in (0, -1, 2.5, math.nan, math.inf):
            refused(f"weight is {weight}", session.forward_backward, [own], weight=weight)
        for norm, most in ((math.nan, 1), (math.inf, 1), (-1, 1), (1, -1), (1, 0), (1, math.nan)):
            refused("norm is", session.clip, norm, most)
        for rate in (-1, math.nan, math.inf):
            refused(f"learning_rate is {rate}", session.update, rate)
        refused("step is -3", setattr, session, "step", -3)
        for function in (session.save, session.save_checkpoint, session.load_checkpoint):
            refused("a folder is None", function, None)
        refused("there are no samples", session.row, [])
        refused("has no tokens", session.row, [Sample([])])
        refused("3 labels for 2 tokens", session.row, [Sample([1, 2], [1, 2, 3])])
        refused("100000", session.row, [Sample([1, 100000])])
        refused("which is no token id", session.row, [Sample([1, 2**40])])
        refused("must be a list of token ids", session.row, [Sample([0.5, 1.0])])
        refused("must have the same columns", session.row, [Sample([1], columns=dict(a=[1])), Sample([1])])
        refused("must have 2 numbers", session.row, [Sample([1, 2], columns=dict(a=[1, 2, 3]))])
        refused("prompt 0 has 0", session.generate, [[]])
        refused("temperature 0", session.generate, [[1]], temperature=0.0)
        refused("at least 1 is needed", session.evaluate, [Sample([1, 2])], batch_size=0)
        refused("is broken", session.load_checkpoint, "nowhere")
        refused('"logprobs" or "hidden"', session.forward_backward, [], mean_of, reads="logits")
        refused("weight is 2", session.forward_backward, [], mean_of, weight=2)
        for keys in (dict(reads="hidden"), dict(whole_row=True)):
            refused("are for a loss function", session.forward_backward, [], **keys)
        assert len(train(session)[0]) == NUM_STEPS
    refused("this session is closed", session.reduce)


def lost(rank, way, model, port):
    """Rank 1 fails in its second step. Prints the error of rank 0."""
    import longspan

    def fails(given, total):
        if rank == 1 and session.step == 1:
            if way == "crash":
                os._exit(7)
            raise KeyError("mine")
        return mean_of(given, total)

    try:
        with open_session(config_of(model), rank, 2, port) as session:
            train(session, fails)
    except longspan.CommunicationError as error:
        print(f"lost: {error}", flush=True)
        os._exit(0)


@pytest.mark.parametrize("way", ["crash", "exception"])
def test_a_lost_rank(way, models):
    arguments = f"int(sys.argv[1]), {way!r}, {models['qwen2']!r}, {free_port()}"
    program = f"import sys, test_session; test_session.lost({arguments})"
    environment = os.environ | dict(PYTHONPATH=os.pathsep.join([str(BUILT), *sys.path]), OMP_NUM_THREADS="1")
    ranks = [subprocess.Popen([sys.executable, "-c", program, str(rank)], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        (text, _), (_, trace) = (rank.communicate(timeout=100) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[0].returncode == 0 and ranks[1].returncode == (7 if way == "crash" else 1), (text, trace)
    assert text.startswith("lost: ") and "rank 1" in text.lower(), text
    if way == "exception":
        assert "KeyError: 'mine'" in trace
