"""Every model family on every number of ranks, under every method of sequence parallelism: the numbers of a run are those
of one process. `make test-families` has each family meet each method."""

import pytest
from families import (NUM_STEPS, RANKS, STAGES, WINDOWS, Families, all_pairs, all_stages, name_of, some_pairs, some_refused,
                      some_stages)


@pytest.fixture
def families(place, known_run):
    return Families(place, known_run)


@pytest.mark.parametrize("run", some_pairs(), ids=name_of)
def test_same_numbers(run, families, tmp_path):
    families.check(run, tmp_path / "run")


@pytest.mark.parametrize("run", some_stages(), ids=name_of)
def test_stages(run, families, tmp_path):
    families.check_stage(run, tmp_path / "run")


@pytest.mark.parametrize("run", some_refused(), ids=name_of)
def test_refused(run, families, tmp_path):
    families.check_refused(run, tmp_path / "run")


def test_rows_are_what_they_are_meant_to_be(families, tmp_path):
    """Some steps have only rows with fewer tokens than ranks; windows are shorter and longer than a shard of a row."""
    lengths = families.lengths_of_rows(tmp_path / "run")
    assert len(lengths) == 2 * NUM_STEPS and len(set(lengths)) > 8
    steps = list(zip(lengths[::2], lengths[1::2]))
    assert any(max(step) < ranks for step in steps for ranks in RANKS[1:])
    assert any(min(step) < ranks and max(step) > WINDOWS["nines"] for step in steps for ranks in RANKS[1:])
    assert WINDOWS["tens"] < max(lengths) / max(RANKS) and max(lengths) / min(RANKS) < WINDOWS["nines"] < max(lengths)


def test_every_pair_is_in_the_array():
    """Of what `make test-families` runs: each family with each method and each number of ranks."""
    from families import AXES
    stages = {(run["family"], run["stage"]) for run in all_stages()}
    assert stages == {(family, stage) for family in AXES["family"] for stage in STAGES}
    array = all_pairs()
    for one, other in (("family", "method"), ("family", "ranks"), ("family", "memory"), ("method", "memory")):
        assert {(run[one], run[other]) for run in array} == {(a, b) for a in AXES[one] for b in AXES[other]}
