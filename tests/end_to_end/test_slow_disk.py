"""A disk may take longer than processes wait for each other."""

import time

import pytest
from conftest import Running, settings_of
from patience import patient_time
from slow_disk import slow_disk  # noqa: F401 (a fixture)

TIMEOUT = 3


@pytest.fixture
def start(slow_disk, models, data, tmp_path, monkeypatch):
    """start(slow_rank, **how): with the variables of slow_disk, and the configuration's keys. Its `slow` lists what was slow."""
    def start(slow_rank, **how):
        with monkeypatch.context() as environment:
            log, keys = tmp_path / "slow.log", {name: value for name, value in how.items() if name.islower()}
            variables = {name: value for name, value in how.items() if name.isupper()}
            for name, value in (dict(LD_PRELOAD=slow_disk, SLOW_RANK=slow_rank, SLOW_LOG=log) | variables).items():
                environment.setenv(name, str(value))
            running = Running(settings_of(models["llama"], data, tmp_path / "run", ddp_timeout=TIMEOUT, max_steps=2,
                                          save_strategy="steps", save_steps=2) | keys, 2)
            running.slow = lambda: log.read_text().split() if log.exists() else []
            return running
    return start


@pytest.mark.parametrize("slow_rank, keys", [(0, dict()), (0, dict(save_total_limit=1)), (1, dict(zero_stage=3))])
def test_the_others_wait(slow_rank, keys, start):
    """Each time for longer than they wait for each other."""
    running = start(slow_rank, SLOW_SECONDS=2 * TIMEOUT, **keys)
    finished = running.wait(timeout=90)
    assert set(finished.statuses) == {0}, finished.text
    # A checkpoint's weights and state, and the model.
    names = running.slow()
    assert len(names) == 3 and sum(".longspan-part-" in name for name in names) == 1, names


@pytest.mark.parametrize("keys", [dict(), dict(save_async=True)])
def test_writes_of_parts_are_no_part_of_a_gather(keys, start):
    """A rank that writes its part of a sharded model keeps no other rank in a collective."""
    running = start(1, SLOW_SECONDS=2 * TIMEOUT, SLOW_AT="write", SLOW_PATH="checkpoint-2.partial/.longspan-model", zero_stage=3, **keys)
    finished = running.wait(timeout=90)
    assert set(finished.statuses) == {0}, finished.text
    assert len(running.slow()) == 1, running.slow()


@pytest.mark.parametrize("victim", [0, 1])
def test_but_not_for_one_that_is_gone(victim, start, tmp_path):
    """The disk stays slow until the other one has ended."""
    held = tmp_path / "held"
    held.touch()
    running = start(0, SLOW_WHILE_THERE=held)
    other, end = running.ranks[1 - victim], patient_time() + 90
    while not running.slow():
        assert patient_time() < end and all(rank.poll() is None for rank in running.ranks), running.text()
        time.sleep(0.02)
    running.ranks[victim].kill()
    try:
        assert other.wait(90) == 1, running.text()
    finally:
        held.unlink()
    text = running.logs[1 - victim].read_text()
    assert f"Rank {victim} (host" in text and "has ended without a word" in text, text
    running.wait()
