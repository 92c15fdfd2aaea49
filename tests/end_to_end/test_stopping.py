"""Told to stop: what was trained is saved, nothing more is begun, status 0; and the same command goes on."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest
from conftest import Running, add_dataset
from conftest import run_processes as succeeds
from held_rows import held_rows, while_loading  # noqa: F401
from faults import children_of, launched_by_torchrun, wait_for
from patience import let_pass, wait_patiently
from safetensors.torch import load_file
from test_resume import LORA, same_bytes, settings, weights


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_told_to_stop(number, num_ranks, settings):
    """Pre-emption: the step is finished, a checkpoint saved, status 0; the same command goes on."""
    keys = dict(max_steps=40, save_strategy="no", gradient_accumulation_steps=1, **LORA)
    whole = succeeds(settings("whole", **keys), num_ranks)
    running = Running(settings("stopped", **keys), num_ranks)
    wait_for(running, "'loss'")
    running.ranks[-1].send_signal(number)
    stopped = running.wait(timeout=20)
    assert set(stopped.statuses) == {0}, stopped.text
    assert stopped.text.count("Stopped after step") == 1 and "checkpoint-" in stopped.text
    (checkpoint,) = stopped.output_dir.glob("checkpoint-*")
    assert not weights(stopped.output_dir)
    again = succeeds(settings("stopped", **keys), num_ranks)
    assert f"{checkpoint.name}, step" in again.text
    same_bytes(whole, again)


@pytest.mark.long
def test_a_second_signal_ends_at_once(settings, tmp_path):
    folder = tmp_path / "long"
    add_dataset(folder, "chats", [dict(instruction="a " * 250, input="", output="b " * 250)], num_samples=1000)
    keys = dict(gradient_accumulation_steps=1000, cutoff_len=2048, dataset_dir=str(folder))
    running = Running(settings("run", **keys))
    wait_for(running, "Output")
    running.ranks[0].terminate()
    time.sleep(6)  # those within 5 seconds are one
    running.ranks[0].terminate()
    assert running.wait(timeout=10).status == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_everyone_is_told_and_told_again(number, settings):
    """A cluster signals the launcher and the workers, and the launcher hands on: one request to stop."""
    running = Running(settings("run", nproc_per_node=2, max_steps=100000, save_strategy="no"))
    wait_for(running, "'loss'")
    launcher = running.ranks[0].pid
    workers = children_of(launcher)
    assert len(workers) == 2
    for pid in [*workers, launcher, *workers]:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # done already
            pass
    stopped = running.wait(timeout=20)
    assert stopped.status == 0, stopped.text
    assert stopped.text.count("Stopped after step") == 1
    assert list(stopped.output_dir.glob("checkpoint-*"))


# As on a kernel without /proc/*/task/*/children.
NO_LISTS = """
import glob
found = glob.glob
glob.glob = lambda path, **keys: [] if path.endswith('/children') else found(path, **keys)
"""


def test_a_launcher_finds_its_workers_without_the_kernels_lists(settings, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(NO_LISTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    running = Running(settings("run", nproc_per_node=2, max_steps=100000, save_strategy="no"))
    wait_for(running, "'loss'")
    running.ranks[0].terminate()
    stopped = running.wait(timeout=20)
    assert stopped.status == 0, stopped.text
    assert stopped.text.count("Stopped after step") == 1
    assert list(stopped.output_dir.glob("checkpoint-*"))


# The last thing that a process does before it is gone: it sends itself a signal. `longspan` goes by _exit(), python by exit().
LATE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((destructor)) static void late(void) {
  const char *number = getenv("LATE_SIGNAL"), *file = getenv("LATE_FILE"), *name = program_invocation_short_name;
  if (!number || (strcmp(name, "longspan") && strncmp(name, "python", 6))) return;
  for (int i = 0; i < 3; ++i) {
    kill(getpid(), atoi(number));
    usleep(20000);
  }
  const int log = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (dprintf(log, "%s\n", name) < 0) abort();
}

void _exit(int status) {
  late();
  ((void (*)(int))dlsym(RTLD_NEXT, "_exit"))(status);
  abort();
}
"""


@pytest.mark.parametrize("number, launched", [
    (signal.SIGTERM, False), (signal.SIGUSR1, False), (signal.SIGINT, False), (signal.SIGHUP, False),
    (signal.SIGTERM, True), (signal.SIGUSR1, True), (signal.SIGINT, True), (signal.SIGHUP, True),
])
def test_signals_until_the_last_instruction(number, launched, settings, tmp_path, monkeypatch):
    """What comes when all is saved, while the process is on its way out, changes nothing: neither worker nor launcher."""
    (tmp_path / "late.c").write_text(LATE)
    library, log = tmp_path / "late.so", tmp_path / "late.log"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "late.c", "-ldl"], check=True)
    for name, value in dict(LD_PRELOAD=library, LATE_SIGNAL=int(number), LATE_FILE=log).items():
        monkeypatch.setenv(name, str(value))
    run = Running(settings("run", max_steps=1, save_strategy="no", **(dict(nproc_per_node=2) if launched else {}))).wait()
    assert run.status == 0 and "Saved the model" in run.text, (run.status, run.text)
    # All of them came so far.
    names = log.read_text().split()
    assert names.count("longspan") == (2 if launched else 1), names
    assert any(name.startswith("python") for name in names) == launched, names


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_launcher_told_to_stop(number, settings):
    keys = dict(nproc_per_node=2, max_steps=100000, save_strategy="no")
    running = Running(settings("run", **keys))
    wait_for(running, "'loss'")
    running.ranks[0].send_signal(number)
    stopped = running.wait(timeout=20)
    assert stopped.status == 0, stopped.text
    assert stopped.text.count("Stopped after step") == 1
    assert list(stopped.output_dir.glob("checkpoint-*"))


def test_torchrun_told_to_stop(settings):
    """torchrun hands SIGTERM on; its own status is not ours."""
    running = launched_by_torchrun(settings("run", max_steps=100000, save_strategy="no"), 2)
    wait_for(running, "'loss'")
    running.ranks[0].terminate()
    stopped = running.wait(timeout=30)
    assert stopped.text.count("Stopped after step") == 1, stopped.text
    (checkpoint,) = stopped.output_dir.glob("checkpoint-*")
    assert load_file(checkpoint / "model.safetensors")


def with_rows(settings, name, num_rows):
    """A data set of so many rows beside those of the fixture."""
    add_dataset(pathlib.Path(settings["dataset_dir"]), name,
                [dict(instruction=f"question {i}", input="", output="an answer " * 8) for i in range(num_rows)])


# Where the signal comes: after which words, with which rows of a step and of an evaluation. An evaluation takes several
# times as long as it takes to see these words, also on a fast processor.
MOMENTS = {
    "in a step": ("'eval_loss'", dict(gradient_accumulation_steps=150, eval_strategy="steps"), 5),
    "in an evaluation": ("'loss'", dict(gradient_accumulation_steps=2, eval_strategy="steps"), 1500),
    "in the last evaluation": ("'loss'", dict(gradient_accumulation_steps=2, do_eval=True, max_steps=1), 1500),
}
ASKS = 0.5  # so many seconds a run goes on before it asks whether to stop


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_no_evaluation_before_the_save(num_ranks, moment, settings):
    """Whoever stops a run gives it some seconds: they are for saving. The run that goes on evaluates first."""
    word, keys, num_eval_rows = MOMENTS[moment]
    keys = dict(max_steps=2, save_strategy="no", eval_dataset="many", plot_loss=True) | keys
    with_rows(settings("whole"), "many", num_ranks * num_eval_rows)
    whole = succeeds(settings("whole", **keys), num_ranks)
    running = Running(settings("stopped", **keys), num_ranks)
    wait_for(running, word, looks_every=0.002)
    # In an evaluation they stand still until the signal is there: what they evaluate meanwhile is a few rows.
    stand_still = running.ranks if "evaluation" in moment else []
    for rank in stand_still:
        rank.send_signal(signal.SIGSTOP)
    running.ranks[-1].send_signal(signal.SIGTERM)
    time.sleep(2 * ASKS if stand_still else 0)
    for rank in stand_still:
        rank.send_signal(signal.SIGCONT)
    stopped = running.wait(timeout=60)
    assert set(stopped.statuses) == {0}, stopped.text
    assert stopped.text.count("'eval_loss'") == (1 if moment == "in a step" else 0), stopped.text
    assert stopped.text.count("Stopped after step") == 1 and "was left out" in stopped.text, stopped.text
    again = succeeds(settings("stopped", **keys), num_ranks)
    assert "Going on from" in again.text
    same_bytes(whole, again)
    assert {path.name for path in whole.output_dir.iterdir()} <= {path.name for path in again.output_dir.iterdir()}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("num_ranks, told", [(1, [0]), (3, [0]), (3, [2]), (3, [2, 1, 0])])
def test_told_before_the_first_step(num_ranks, told, number, settings, while_loading):
    """There is nothing to save, and nothing has failed."""
    with while_loading(settings("run"), lambda keys: Running(keys, num_ranks)) as running:
        for rank in told:
            running.ranks[rank].send_signal(number)
        stopped = running.wait(timeout=60)
    assert set(stopped.statuses) == {0}, stopped.text
    assert "Stopped before the first step" in stopped.texts[0] and number.name in stopped.texts[0], stopped.text
    assert stopped.text.count("Stopped") == 1 and "error" not in stopped.text, stopped.text


def test_the_server_of_the_store_stays_until_all_have_read(settings, while_loading):
    """Rank 0 alone is told to stop, while another rank hears of nothing for longer than a busy machine takes."""
    with while_loading(settings("run"), lambda keys: Running(keys, 3)) as running:
        running.ranks[1].send_signal(signal.SIGSTOP)
        running.ranks[0].terminate()
        let_pass(8)
        assert running.ranks[0].poll() is None, running.text()
        running.ranks[1].send_signal(signal.SIGCONT)
        stopped = running.wait(timeout=60)
    assert set(stopped.statuses) == {0}, (stopped.statuses, stopped.text)
    assert "Stopped before the first step" in stopped.texts[0] and "SIGTERM" in stopped.texts[0], stopped.text
    assert stopped.text.count("Stopped") == 1 and "error" not in stopped.text, stopped.text


@pytest.mark.long
def test_a_second_signal_ends_the_server_of_the_store(settings, while_loading):
    """It waits no longer for who hears of nothing, who then finds that it is gone, long before ddp_timeout."""
    with while_loading(settings("run"), lambda keys: Running(keys, 3)) as running:
        running.ranks[1].send_signal(signal.SIGSTOP)
        running.ranks[0].terminate()
        wait_patiently(running.ranks[2], 60)
        let_pass(5.5)  # signals within 5 seconds are one
        running.ranks[0].terminate()
        wait_patiently(running.ranks[0], 20)
        running.ranks[1].send_signal(signal.SIGCONT)
        stopped = running.wait(timeout=60)
    assert stopped.statuses == [128 + signal.SIGTERM, 1, 0], (stopped.statuses, stopped.text)
    lost = f"Rank 0 (host {socket.gethostname()}, process {running.ranks[0].pid}) has ended without a word"
    assert stopped.texts[1].count("error: ") == stopped.texts[1].count(lost) == 1 and "error" not in stopped.texts[0] + stopped.texts[2], stopped.text


def test_a_restarting_launcher_does_not_restart_them(settings, while_loading):
    """One worker of torchrun's is told to stop while all load: that is no failure."""
    def start(keys):
        return launched_by_torchrun(keys, 2, "--max-restarts=2")

    with while_loading(settings("run"), start) as running:
        os.kill(running.workers()[1], signal.SIGTERM)
        stopped = running.wait(timeout=30)
    assert stopped.status == 0 and stopped.text.count("Stopped before the first step") == 1, stopped.text


def holds(pid, number):
    """Is the signal held by the process?"""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("SigBlk:")[2].split()[0], 16) >> (number - 1) & 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("delay", [0, 0.3, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_launcher_told_while_it_starts(number, delay, settings):
    """Whatever has been started by then: python, torchrun, the workers, training."""
    running = Running(settings("run", nproc_per_node=2, max_steps=100000, save_strategy="no"))
    while not holds(running.ranks[0].pid, number):  # the system still loads the program
        time.sleep(0.01)
    time.sleep(delay)
    running.ranks[0].send_signal(number)
    stopped = running.wait(timeout=30)
    assert stopped.status == 0, stopped.text
    assert stopped.text.count("Stopped") == 1, stopped.text
