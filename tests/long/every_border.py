"""Attention on the borders of documents of ring-flash-attention's tests, with their lengths, heads and 8 ranks. `make
test-families`; what `make test` has of it is tests/python/test_others.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from forks import run_forks  # noqa: E402
from others import BORDERS, attention_errors, tolerance  # noqa: E402


@pytest.mark.parametrize("name, head_dim", [("ring", 128), ("ring", 8), ("zigzag", 128), ("whole", 128), ("ring / 8", 8),
                                            ("prepared", 8)])
def test_borders(name, head_dim):
    for found in run_forks(8, attention_errors, {name: BORDERS[name]}, head_dim, timeout=900):
        for place, errors in found.items():
            assert max(errors) < tolerance(BORDERS[name]), (place, errors)
