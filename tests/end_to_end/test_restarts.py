"""Workers that are started again, by torchrun or by the cluster, lose no work."""

import os
import shutil
import signal
import time

import pytest
from conftest import PROGRAM, Running, free_port
from conftest import run_processes as succeeds
from faults import TORCHRUN, Launched, is_alive, launched_by_torchrun, wait_for, write_config
from held_rows import held_rows, while_loading  # noqa: F401
from test_resume import log_lines, same_bytes, settings, weights


@pytest.mark.parametrize("overwrite", [False, True])
def test_torchrun_restarts(overwrite, settings):
    """A worker is killed; those that torchrun starts go on from the last checkpoint, also where the
    configuration overwrites what is there, and older checkpoints stay out of it."""
    keys = dict(max_steps=30, save_steps=2, save_total_limit=3)
    whole = succeeds(settings("whole", **keys), 2)
    if overwrite:
        succeeds(settings("run", max_steps=100, save_steps=100))
    running = launched_by_torchrun(settings("run", **keys, overwrite_output_dir=overwrite), 2, "--max-restarts=2")
    wait_for(running, "checkpoint-6: ")
    os.kill(running.workers()[1], signal.SIGKILL)
    finished = running.wait(timeout=90)
    assert finished.status == 0, finished.text
    assert "Going on from" in finished.text
    assert weights(finished.output_dir) == weights(whole.output_dir)
    assert log_lines(finished.output_dir) == log_lines(whole.output_dir)


def test_a_restart_goes_back_no_further_than_it_has_to(settings):
    """The folder that is named is where the first start begins; the one after it has something newer."""
    keys = dict(max_steps=30, save_steps=2)
    whole = succeeds(settings("whole", **keys), 2)
    named = str(whole.output_dir / "checkpoint-4")
    running = launched_by_torchrun(settings("run", **keys, resume_from_checkpoint=named), 2, "--max-restarts=2")
    wait_for(running, "checkpoint-10: ")
    os.kill(running.workers()[0], signal.SIGKILL)
    finished = running.wait(timeout=90)
    assert finished.status == 0, finished.text
    assert f"Going on from {named}, step 4 of 30" in finished.text
    assert finished.text.count(f"Going on from {named}") == 1, finished.text
    assert f"resume_from_checkpoint names {named}. That is for the first start" in finished.text
    assert weights(finished.output_dir) == weights(whole.output_dir)
    assert log_lines(finished.output_dir) == log_lines(whole.output_dir)


@pytest.mark.parametrize("how", ["named", "overwritten"])
def test_a_requeued_job_goes_on(how, settings, monkeypatch):
    """Slurm runs the same command once more: it must not go back to where the first run of it began."""
    keys = dict(max_steps=30, save_steps=5)
    whole = succeeds(settings("whole", **keys))
    first = dict(resume_from_checkpoint=str(whole.output_dir / "checkpoint-5"))
    if how == "overwritten":
        first = dict(overwrite_output_dir=True)
        succeeds(settings("run", max_steps=50, save_steps=25))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    running = Running(settings("run", **keys, **first))
    wait_for(running, "checkpoint-15: ")
    running.ranks[0].kill()
    running.wait()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    again = succeeds(settings("run", **keys, **first))
    start = int(again.text.partition("Going on from")[2].partition(", step ")[2].split()[0])
    assert 15 <= start <= 30, again.text
    same_bytes(whole, again)
    # Another job, and a first start of this one, do as they are told.
    for name, value in (("SLURM_JOB_ID", "4712"), ("SLURM_RESTART_COUNT", "0")):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            shutil.copytree(again.output_dir, again.output_dir.with_name(name))
            if how == "named":
                anew = Running(settings(name, **keys, **first)).wait()
                assert anew.status == 1 and "holds results of an earlier run" in anew.text, anew.text
            else:
                anew = succeeds(settings(name, **keys, **first))
                assert "Going on from" not in anew.text, anew.text


def test_a_machine_that_counts_other_restarts(settings, while_loading):
    """With torchrun's c10d rendezvous a machine whose workers are fine starts them again, for the sake of one whose
    workers are not, without counting that. All the same they find each other."""
    keys = settings("run", max_steps=4, save_strategy="no", ddp_timeout=20)
    whole = succeeds(keys | dict(output_dir=keys["output_dir"] + "-whole"), 2)
    command = [TORCHRUN, "--no-python", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=7",
               f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1", "--max-restarts=3", PROGRAM, "train",
               write_config(keys)]
    # Both are alive and well, and wait for their rows, when one is killed.
    with while_loading(keys, lambda _: Launched([command, command], keys["output_dir"])) as running:
        workers = running.workers()
        os.kill(workers[1], signal.SIGKILL)
        while is_alive(workers[0]):
            assert all(rank.poll() is None for rank in running.ranks), running.text()
            time.sleep(0.05)
        running.go_on()
        finished = running.wait(timeout=60)
    assert set(finished.statuses) == {0} and "error: " not in finished.text, finished.text
    assert whole.logged("loss") == finished.logged("loss")
