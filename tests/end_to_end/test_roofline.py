"""tools/roofline: its launches are held to what null GPUs count and its seconds to what an H100 took, and
docs/gpu-measurements.md has its tables."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROOFLINE = ROOT / "tools" / "roofline"


def run(path, *arguments):
    return subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True)


def test_it_is_as_near_as_it_says():
    ended = run(ROOFLINE, "--check")
    assert ended.returncode == 0, ended.stderr
    assert "counted" in ended.stdout and "measured" in ended.stdout


def test_the_page_says_what_it_prints():
    ended = run(ROOFLINE)
    assert ended.returncode == 0, ended.stderr
    page = (ROOT / "docs" / "gpu-measurements.md").read_text().splitlines()
    lines = [line for line in ended.stdout.splitlines() if line.startswith("| ")]
    assert len(lines) > 12
    for line in lines:
        assert line in page, line
