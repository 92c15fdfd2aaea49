"""Code of the pages on Python runs, and the pages name what the package has."""

import pathlib
import re

import pytest
import torch
from forks import run_forks
from hf_models import small_model, uneven_batches

import longspan

PAGES = {path.name: path.read_text() for path in (pathlib.Path(__file__).parents[2] / "docs").glob("python*.md")}


def code_with(page, words):
    """The block of a page that has these words."""
    block, = [block for block in re.findall(r"```python\n(.*?)```", PAGES[page], re.S) if words in block]
    return compile(block, f"{page}: {words}", "exec")


def test_all_names():
    code = re.findall(r"`+[^`]+`+", "".join(PAGES.values()))
    assert set(longspan.__all__) - set(re.findall(r"\w+", " ".join(code))) == set()


def shared_row(rank):
    names = {}
    exec(code_with("python.md", "token_order"), names)
    return names["whole_row"], names["whole_out"]


def test_a_shared_row():
    for row, out in run_forks(2, shared_row, joined=False):
        torch.testing.assert_close(out, longspan.attention(*row, documents=[300, 212]), rtol=1e-5, atol=1e-5)


def own_loss(rank, batches):
    model = small_model("llama", num_hidden_layers=1)
    parallelize = longspan.parallelize
    longspan.parallelize = lambda *given, **named: parallelize(*given, **named | dict(sequence_parallel_size=2))
    names = dict(longspan=longspan, torch=torch, model=model, loader=batches)
    exec(code_with("python-hugging-face.md", "mean_loss"), names)
    return names["loss"].item(), model.lm_head.weight.grad


def test_a_loss_of_your_own():
    batch, = uneven_batches(1)
    weights = torch.rand(batch["input_ids"].shape)
    model, labels = small_model("llama", num_hidden_layers=1), batch["labels"][:, 1:]
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    expected = (losses * weights[:, :-1].flatten()).sum() / (labels != -100).sum()
    expected.backward()
    for loss, gradient in run_forks(2, own_loss, [batch | dict(weights=weights)]):
        assert loss == pytest.approx(expected.item(), abs=1e-5)
        torch.testing.assert_close(gradient, model.lm_head.weight.grad, rtol=1e-4, atol=1e-6)


def test_a_loss_of_a_session(models, monkeypatch):
    """With equal weights the loss is the mean over the labels, as that of the stage."""
    samples = [longspan.Sample(ids, [-100] * 3 + ids[3:], dict(weight=[2.0] * len(ids)))
               for ids in ([5, 6, 7, 8, 9, 10], [11, 12, 13, 14])]
    session = longspan.Session(dict(model_name_or_path=models["qwen2"], finetuning_type="full", device="cpu", cutoff_len=64))
    expected = session.sum_up(session.forward_backward([session.row(samples)]))
    session.drop()
    monkeypatch.setattr(session, "save", lambda folder: None)
    monkeypatch.setattr(longspan, "Session", lambda config: session)
    printed = []
    exec(code_with("python.md", "weight_of"), dict(longspan=longspan, torch=torch, batches=[samples], print=printed.append))
    assert printed == [pytest.approx(expected, rel=1e-5)]
