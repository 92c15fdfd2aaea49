"""tools/roofline: its launches are held to what null GPUs count and its seconds to what an H100 took, and
docs/gpu-measurements.md has its tables."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROOFLINE = ROOT / "tools" / "roofline"
TEXT = ROOFLINE.read_text()

LAUNCHES = list(re.finditer(r"\b(?:step|layer|inputs|feed_forward|last|head)=(\d+)", TEXT))
OTHERS = [match for words in (r"attention=\((661e12)", r"gemm=(0.70)", r"rows_rate=(0.85)", r"PEAK, MEMORY = (989e12)",
                              r"copies -= (9)", r"CUT_HEADS = (61)", r"[^_]input_bytes=(64)", r"feed_forward_bytes=(256)",
                              r"head_bytes=(2048)", r"SUMMED_AT_ONCE = (2\*\*24)", r"UPDATED_AT_ONCE = (2240)")
          for match in re.finditer(words, TEXT)]


def run(path, *arguments):
    return subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True)


def test_it_is_as_near_as_it_says():
    ended = run(ROOFLINE, "--check")
    assert ended.returncode == 0, ended.stderr
    assert "counted" in ended.stdout and "measured" in ended.stdout


def test_its_constants_are_found():
    assert len(LAUNCHES) == 12 and len(OTHERS) == 11


@pytest.mark.parametrize("constant", LAUNCHES + OTHERS, ids=lambda match: f"{match[0]} at {match.start()}")
def test_a_wrong_constant_is_found(tmp_path, constant):
    """A launch more of two dozen, and twice what else it has."""
    wrong = f"{constant[1]} + 1" if constant in LAUNCHES else f"2 * {constant[1]}"
    path = tmp_path / "roofline"
    path.write_text(TEXT[: constant.start(1)] + wrong + TEXT[constant.end(1):])
    ended = run(path, "--check")
    assert ended.returncode == 1 and "roofline: too far apart" in ended.stderr, ended.stdout + ended.stderr


def test_the_page_says_what_it_prints():
    ended = run(ROOFLINE)
    assert ended.returncode == 0, ended.stderr
    page = (ROOT / "docs" / "gpu-measurements.md").read_text().splitlines()
    lines = [line for line in ended.stdout.splitlines() if line.startswith("| ")]
    assert len(lines) > 12
    for line in lines:
        assert line in page, line
