"""Every model family with every method of sequence parallelism, every way to save memory and every number of ranks: the
numbers of a run are those of one process, or the program refuses it. `make test-families`; what `make test` has of it is
tests/end_to_end/test_families.py."""

import pytest
from families import Families, all_pairs, all_refused, all_stages, name_of


@pytest.fixture
def families(place, known_run):
    return Families(place, known_run)


@pytest.mark.parametrize("run", all_pairs(), ids=name_of)
def test_same_numbers(run, families, tmp_path):
    families.check(run, tmp_path / "run")


@pytest.mark.parametrize("run", all_stages(), ids=name_of)
def test_stages(run, families, tmp_path):
    families.check_stage(run, tmp_path / "run")


@pytest.mark.parametrize("run", all_refused(), ids=name_of)
def test_refused(run, families, tmp_path):
    families.check_refused(run, tmp_path / "run")
