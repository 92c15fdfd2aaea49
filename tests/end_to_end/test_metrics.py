"""metrics_file, read by Prometheus' own parser."""

import time

import pytest
from conftest import Running, settings_of
from patience import patient_time
from prometheus_client.parser import text_string_to_metric_families


def numbers_of(text):
    """Values by name and rank."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels.get("rank")] = sample.value
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_file_has_the_last_entry_and_all_ranks(train, tmp_path, ranks):
    metrics = tmp_path / "run.prom"
    run = train(num_ranks=ranks, sequence_parallel_size=ranks, logging_steps=2, max_steps=100, ddp_timeout=4, metrics_file=str(metrics))
    found = numbers_of(metrics.read_text())
    last = [entry for entry in run.history if "loss" in entry][-1]
    for key in ("loss", "grad_norm", "learning_rate", "epoch"):
        assert found[f"longspan_{key}"] == {None: last[key]}, key
    assert found["longspan_total_steps"] == {None: 100}
    # A rank whose heartbeats are late may be missing.
    steps, waits = found["longspan_rank_step_seconds"], found["longspan_rank_wait_seconds"]
    assert steps.keys() == waits.keys() and steps.keys() <= {str(rank) for rank in range(ranks)}
    assert all(0 <= waits[rank] <= steps[rank] for rank in steps)
    if ranks == 1:
        assert steps["0"] > 0 and waits["0"] == 0


def test_each_rank_has_its_times(models, data, tmp_path):
    metrics, end = tmp_path / "run.prom", patient_time() + 60
    running = Running(settings_of(models["llama"], data, tmp_path / "run", sequence_parallel_size=2, logging_steps=50,
                                  max_steps=1000000, ddp_timeout=20, metrics_file=str(metrics)), 2)
    found = {}
    # An entry lacks a rank whose heartbeats have told of no step since the entry before.
    while found.get("longspan_rank_step_seconds", {}).keys() != {"0", "1"}:
        assert patient_time() < end and all(rank.poll() is None for rank in running.ranks), running.text()
        time.sleep(0.05)
        found = numbers_of(metrics.read_text()) if metrics.exists() else {}
    for rank in running.ranks:
        rank.kill()
    running.wait()
    steps, waits = found["longspan_rank_step_seconds"], found["longspan_rank_wait_seconds"]
    assert waits.keys() == steps.keys() and all(0 < waits[rank] < steps[rank] for rank in steps), found
