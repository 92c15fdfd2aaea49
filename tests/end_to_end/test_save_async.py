"""save_async: training goes on while a checkpoint is written, and nothing else is different."""

import json
import signal
import time

import pytest
from conftest import DEVICE, Running, run_processes, run_to_end, settings_of
from full_disk import full_disk, shim  # noqa: F401 (fixtures)
from patience import patient_time
from slow_disk import slow_disk  # noqa: F401 (a fixture)
from test_resume import log_lines, same_bytes, without_times

TIMEOUT = 3
# With a limit, which removes none here, each checkpoint is read back.
SAVES = dict(max_steps=14, save_strategy="steps", save_steps=3, save_total_limit=4, ddp_timeout=TIMEOUT)
OF_THE_RUN = {"launch", "job", "saved_at"}


def contents(folder):
    """Contents of a checkpoint's files, without times and other values that differ between any two runs."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    del found["checksums.json"]  # of the others
    state = json.loads(found.pop("training_state.json"))
    del state["totals"]["progress"]["elapsed_seconds"], state["run"]["moment"]
    log = json.loads(found.pop("trainer_state.json"))
    log["log_history"] = without_times(log["log_history"])
    del found["trainer_log.jsonl"]
    return found, {key: value for key, value in state.items() if key not in OF_THE_RUN}, log, log_lines(folder)


@pytest.mark.parametrize("num_ranks, keys", [
    (1, dict(finetuning_type="lora", save_only_model=True)),
    (2, dict(zero_stage=1, bf16=True, optim="adamw_8bit")),
    (2, dict(zero_stage=3, bf16=True)),
    (2, dict(zero_stage=3, finetuning_type="lora", save_total_limit=2)),
], ids=["an adapter", "a whole model, 8-bit states", "parts", "an adapter of parts"])
def test_the_same_files(num_ranks, keys, train):
    """And the memory of the copy is in the account."""
    keys = keys | dict(max_steps=4, save_strategy="steps", save_steps=2)
    waits = train(num_ranks=num_ranks, **keys)
    run = train(num_ranks=num_ranks, way=run_processes, save_async=True, **keys)
    assert run.texts[0].count("of which the steps waited") == 2 and "the steps waited" not in waits.texts[0], run.text
    same_bytes(run, waits)
    for name in ("checkpoint-2", "checkpoint-4"):
        of_run, of_waits = (contents(folder / name) if "save_only_model" not in keys else (folder / name / "adapter_model.safetensors").read_bytes()
                            for folder in (run.output_dir, waits.output_dir))
        assert of_run == of_waits
    assert not [path for path in run.output_dir.iterdir() if path.name.startswith(".")]
    memory = json.loads((run.output_dir / "memory.json").read_text())
    [line] = [line for line in memory["account"] if line["name"] == "Copy to save"]
    assert ("Copy to save" in waits.text) == (keys.get("zero_stage") == 3)
    if DEVICE == "cpu":  # elsewhere other host memory is counted too
        assert 0.95 < line["host"] / max(rank["host"] for rank in memory["measured"]) < 1.05, memory


MOMENTS = {
    "a part": dict(SLOW_RANK="1", SLOW_PATH=".checkpoint-6.partial"),
    "the table": dict(SLOW_RANK="0", SLOW_PATH=".checkpoint-6.partial", SLOW_NAME="checksums.json"),
    "renamed": dict(SLOW_RANK="0", SLOW_AT="rename", SLOW_NAME=".checkpoint-6.partial"),
    "read back": dict(SLOW_RANK="1", SLOW_AT="posix_fadvise", SLOW_PATH="/checkpoint-6/", SLOW_NAME=".safetensors"),
}


@pytest.fixture
def start(slow_disk, models, data, tmp_path):
    """Two processes whose checkpoint-6 waits at a moment of MOMENTS, as long as `held` exists."""
    def start(moment="a part"):
        held, slow = tmp_path / "held", tmp_path / "slow"
        held.touch()
        running = Running(settings_of(models["llama"], data, tmp_path / "run", zero_stage=3, save_async=True, **SAVES), 2,
                          LD_PRELOAD=str(slow_disk), SLOW_WHILE_THERE=str(held), SLOW_LOG=str(slow), **MOMENTS[moment])
        log, end = running.output_dir / "trainer_log.jsonl", patient_time() + 90
        # A part is written while step 8 is done.
        while not slow.exists() or (moment == "a part" and len(log.read_text().splitlines()) < 8):
            assert patient_time() < end and all(rank.poll() is None for rank in running.ranks), running.text()
            time.sleep(0.02)
        is_there = moment == "read back"
        assert [(running.output_dir / name).exists() for name in ("checkpoint-6", ".checkpoint-6.partial")] == [is_there, not is_there]
        return running, held
    return start


@pytest.fixture
def undisturbed(models, data, tmp_path):
    return lambda: run_to_end(settings_of(models["llama"], data, tmp_path / "undisturbed", zero_stage=3, **SAVES), 2)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_it_writes(moment, start, undisturbed, models, data, tmp_path):
    running, held = start(moment)
    for rank in running.ranks:
        rank.kill()
    killed = running.wait()
    held.unlink()
    assert {-signal.SIGKILL} == set(killed.statuses)
    whole = 6 if moment == "read back" else 3
    assert (killed.output_dir / "checkpoint-6").exists() == (whole == 6)
    on = run_to_end(settings_of(models["llama"], data, killed.output_dir, zero_stage=3, save_async=True, **SAVES), 2)
    assert f"Going on from {on.output_dir}/checkpoint-{whole}" in on.text, on.text
    same_bytes(on, undisturbed())
    assert {f"checkpoint-{step}" for step in (3, 6, 9, 12)} == {path.name for path in on.output_dir.glob("*checkpoint*")}


def test_told_to_stop_while_it_writes(start, undisturbed, models, data):
    """For longer than the ranks wait for each other."""
    running, held = start()
    running.ranks[0].send_signal(signal.SIGTERM)
    end = time.monotonic() + TIMEOUT + 2
    while time.monotonic() < end:
        assert all(rank.poll() is None for rank in running.ranks), running.text()
        time.sleep(0.1)
    held.unlink()
    run = running.wait()
    assert set(run.statuses) == {0} and (run.output_dir / "checkpoint-6").exists(), run.text
    # One of the step at which the signal was seen, or after which the run waited.
    last = max(int(path.name.split("-")[1]) for path in run.output_dir.glob("checkpoint-*"))
    assert 9 <= last <= 10 and "Stopped" in run.text, run.text
    on = run_to_end(settings_of(models["llama"], data, run.output_dir, zero_stage=3, **SAVES), 2)
    assert f"Going on from {on.output_dir}/checkpoint-{last}" in on.text, on.text
    same_bytes(on, undisturbed())


@pytest.mark.parametrize("error", ["full", "broken"])
def test_a_disk_that_takes_no_more(error, models, data, tmp_path, full_disk):
    """Of rank 1, which writes a part."""
    full_disk(".checkpoint-3.partial", FULL_RANK=1, **(dict(FULL_ERRNO=5) if error == "broken" else {}))
    run = Running(settings_of(models["llama"], data, tmp_path / "run", zero_stage=3, save_async=True, **SAVES), 2).wait()
    assert not list(run.output_dir.glob("*checkpoint-3*")), run.text
    if error == "broken":
        assert set(run.statuses) == {1} and run.text.count("error: ") == 1, run.text
        assert "error: rank 1: Cannot write " in run.texts[0] and "Input/output error" in run.texts[0], run.text
        return
    assert set(run.statuses) == {0} and run.text.count("warning: checkpoint-3 is not saved: ") == 1, run.text
    assert "There is no checkpoint yet. Later steps save" in run.text and (run.output_dir / "checkpoint-6").exists(), run.text
