"""The notebook of the examples runs from start to end."""

import json
import pathlib

from ranks import BUILT  # noqa: F401  # puts the package on the path

NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples/python/first_steps.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    losses = names["losses"]
    assert len(losses) == 5 and losses == sorted(losses, reverse=True)
    text = capsys.readouterr().out
    assert "Parameters" in text and f"step 5: loss {losses[-1]:.4f}" in text and "length" in text
    # The saved model is the trained one: its loss is below that of the last step.
    torch, total = names["torch"], 0.0
    for sample in names["samples"]:
        ids = torch.tensor([sample.input_ids])
        logprobs = names["trained"](ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        total -= (torch.tensor(sample.columns["weight"][:-1]) * logprobs).sum().item()
    assert total / names["total"] < losses[-1]
