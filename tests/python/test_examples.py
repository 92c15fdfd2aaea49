"""The examples of the Python package run on two processes, and their losses fall, or their rewards rise."""

import contextlib
import io
import os
import pathlib
import re
import runpy
import sys

import pytest
from forks import run_forks

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "tiny")


def output_of(rank, name, folder):
    os.chdir(folder)
    sys.path.insert(0, str(FOLDER))
    with contextlib.redirect_stdout(io.StringIO()) as text:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return text.getvalue()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(tmp_path, name):
    text = run_forks(2, output_of, name, tmp_path, joined=False)[0]
    if "grpo" in name:
        first, last = map(float, re.search(r"mean reward: ([0-9.]+) in the first 3 steps, ([0-9.]+) in the last 3", text).groups())
        assert last > first + 0.1, text
    else:
        losses = [float(number) for number in re.findall(r"loss'?:? '?([-0-9.]+)", text)]
        assert len(losses) >= 3 and losses[-1] < losses[0], text
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 40
