"""Ways to break a run, and to watch what becomes of it."""

import os
import pathlib
import subprocess
import sys
import time

from conftest import PROGRAM, Finished, Running, write_config
from patience import patient_time

TORCHRUN = pathlib.Path(sys.executable).with_name("torchrun")


def wait_for(running, word, seconds=120, looks_every=0.02):
    end = patient_time() + seconds
    while word not in running.text():
        assert patient_time() < end and any(r.poll() is None for r in running.ranks), running.text()
        time.sleep(looks_every)


def children_of(pid):
    try:
        return [int(child) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children")
                for child in path.read_text().split()]
    except OSError:
        return []


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes_with(word):
    """Processes of `longspan` that were started with this word, whoever their parents are."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str(word).encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                if pathlib.Path(os.readlink(folder / "exe")) == PROGRAM.resolve():
                    found.append(int(folder.name))
        except OSError:
            pass
    return found


class Launched(Running):
    """Processes that start workers of their own, one for each machine."""

    def __init__(self, commands, output_dir, environment=None):
        self.output_dir = pathlib.Path(output_dir)
        self.output_dir.parent.mkdir(parents=True, exist_ok=True)
        self.logs, self.ranks = [], []
        for number, command in enumerate(commands):
            self.logs.append(self.output_dir.parent / f"{self.output_dir.name}.launcher{number}.log")
            with open(self.logs[-1], "w") as log:
                self.ranks.append(subprocess.Popen(
                    [str(word) for word in command], stdout=log, stderr=subprocess.STDOUT,
                    env=dict(os.environ, OMP_NUM_THREADS="1") | (environment or {})))

    def workers(self):
        """Processes of `longspan` below the launchers, in the order of their ranks on a machine."""
        found, queue = [], [rank.pid for rank in self.ranks]
        while queue:
            pid = queue.pop(0)
            queue += children_of(pid)
            try:
                if pathlib.Path(os.readlink(f"/proc/{pid}/exe")) == PROGRAM.resolve():
                    found.append(pid)
            except OSError:
                pass
        return sorted(found)

    def wait(self, timeout=60):
        workers = self.workers()
        finished = Running.wait(self, timeout)
        end = patient_time() + 5
        while any(is_alive(pid) for pid in workers) and patient_time() < end:
            time.sleep(0.05)
        left = [pid for pid in workers if is_alive(pid)]
        for pid in left:
            os.kill(pid, 9)
        assert not left, f"orphans: {left}\n{finished.text}"
        return finished


def launched_by_torchrun(settings, num_ranks, *options):
    config = write_config(settings)
    return Launched([[TORCHRUN, "--no-python", "--standalone", f"--nproc-per-node={num_ranks}", *options, PROGRAM,
                      "train", config]], settings["output_dir"])


__all__ = ["Finished", "Launched", "children_of", "is_alive", "launched_by_torchrun", "processes_with", "wait_for", "write_config"]
