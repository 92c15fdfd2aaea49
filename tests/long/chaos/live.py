"""One start of a run in a world: its processes, what they say, how they end."""

import contextlib
import json
import os
import pathlib
import re
import signal
import time

from chaos import runs
from chaos.runs import PROGRAM
from chaos.world import children_of, executable_of

# What no run may end with, whatever is done to it.
NEVER = ["internal error", "terminate called", "panicked", "Segmentation fault", "AddressSanitizer", "double free"]
NEVER_STATUS = {2, 128 + signal.SIGABRT, 128 + signal.SIGSEGV, 128 + signal.SIGBUS, 128 + signal.SIGFPE, 128 + signal.SIGILL}

# How a start ends.
DONE, STOPPED, INTERRUPTED, FAILED, KILLED = "done", "stopped", "interrupted", "failed", "killed"


def state_of(pid):
    """(state, when it was started) of a process; None where it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (fields[0], fields[19])


def has_begun(pid):
    """Is the process of `longspan` at the first instruction of its own, which ignores SIGXFSZ? Before it libraries are loaded."""
    try:
        ignored = pathlib.Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0]
    except (OSError, IndexError):
        return True
    return bool(int(ignored, 16) >> (signal.SIGXFSZ - 1) & 1)


def found_no_memory_to_load(text, num_processes):
    """C++'s last words, of so many processes at most, and of nothing but memory."""
    pages = [line.strip() for line in text.splitlines() if "terminate called" in line]
    return 0 < len(pages) <= num_processes and all(
        page == "terminate called after throwing an instance of 'std::bad_alloc'" for page in pages)


def is_inside(pid):
    """Of a world, not of the host: nothing else is ever signalled."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def kill(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Live:
    """Started when it is made. Poll it (processes(), ended()) often: orphans are known by what was seen before."""

    def __init__(self, world, kind, settings, logs, machine=0, port=runs.PORT):
        """machine: where the first of its machines is."""
        self.world, self.kind, self.output_dir = world, kind, settings["output_dir"]
        config = logs.with_suffix(".yaml")
        config.write_text(json.dumps(settings))  # JSON is YAML
        self.logs, self.holders, self.seen, self.tops = [], [], {}, {}
        self.childless = set()  # workers, whose many threads need not be asked for children
        self.killed_by_us = set()
        self.began = time.monotonic()
        for number, (index, words, environment) in enumerate(runs.commands_of(kind, config, port)):
            self.logs.append(logs.with_suffix(f".{number}.log"))
            self.holders.append(world.machines[machine + index].start(words, self.logs[-1], environment))

    # What it says.

    def text(self):
        return "\n".join(log.read_text(errors="replace") for log in self.logs)

    def says(self, word):
        return word in self.text()

    def entries(self):
        """Of output_dir."""
        try:
            return os.listdir(self.world.on_host(self.output_dir))
        except OSError:
            return []

    def is_saving(self):
        return any(re.match(r"\..*(checkpoint|model).*\.partial$", name) for name in self.entries())

    def is_leaving(self):
        return self.says("Saved the model") or any(re.match(r"\.(longspan-)?model.*\.partial$", name) for name in self.entries())

    # Processes.

    def processes(self):
        """All that live, in the order of their numbers: what the user has started, launchers and workers."""
        for number, holder in enumerate(self.holders):
            if number not in self.tops:
                for pid in children_of(holder.pid):
                    self.tops[number] = pid
        queue = list(self.tops.values()) + list(self.seen)
        for pid in queue:
            state = state_of(pid)
            if state is None or self.seen.get(pid, state[1]) != state[1]:
                continue
            if pid not in self.seen:
                # Not what only just becomes the process that is wanted.
                if executable_of(pid).name == "nsenter":
                    continue
                self.seen[pid] = state[1]
            if pid in self.childless:
                continue
            if pid not in self.tops.values() and executable_of(pid) == PROGRAM.resolve():
                self.childless.add(pid)
            queue += [child for child in children_of(pid) if child not in queue]
        return sorted(pid for pid, started in self.seen.items() if (state := state_of(pid)) and state[1] == started)

    def launchers(self):
        if not self.kind.launched:
            return []
        alive = self.processes()
        return [pid for pid in self.tops.values() if pid in alive]

    def workers(self):
        launchers = set(self.tops.values()) if self.kind.launched else set()
        return [pid for pid in self.processes() if pid not in launchers and executable_of(pid) == PROGRAM.resolve()]

    def signal(self, pid, number):
        """Who holds a process for us stops with it, and must be told to go on."""
        if is_inside(pid):
            if number == signal.SIGKILL:
                self.killed_by_us.add(pid)
            kill(pid, number)
        if number in (signal.SIGCONT, signal.SIGKILL):
            for holder in self.holders:
                if holder.poll() is None:
                    kill(holder.pid, signal.SIGCONT)

    def kill_all(self, pids=None):
        for pid in self.processes() if pids is None else pids:
            self.signal(pid, signal.SIGKILL)

    def is_over(self, but=()):
        """All are gone, but for these."""
        alive = [pid for pid in self.processes() if pid not in but]
        stay = {number for number, pid in self.tops.items() if pid in but}
        for number, holder in enumerate(self.holders):
            if not alive and number not in stay and holder.poll() is None:
                kill(holder.pid, signal.SIGCONT)  # it has stopped with its process, and so has not seen the end
        return not alive and all(holder.poll() is not None for number, holder in enumerate(self.holders) if number not in stay)

    def wait(self, end, but=()):
        """Until the monotonic time `end`; whether it is over."""
        while not self.is_over(but):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    # How it has ended.

    def statuses(self):
        """Of what the user has started and we have not killed; negative: by a signal."""
        return [holder.poll() for number, holder in enumerate(self.holders) if self.tops.get(number) not in self.killed_by_us]

    def end(self):
        """DONE, STOPPED, ..., or a sentence that says what is wrong with it."""
        text, statuses = self.text(), [status for status in self.statuses() if status is not None]
        own = self.kind.start != runs.TORCHRUN_MACHINES  # torchrun has its own way to end
        for word in NEVER + (["Traceback"] if own else []):
            if word in text:
                return f"it says {word!r}"
        bad = [status for status in statuses if status in NEVER_STATUS or -status + 128 in NEVER_STATUS]
        if bad:
            return f"it ends with status {bad[0]}"
        if re.search(r"Saved the model (and logs )?in ", text) and not (own and any(statuses)):
            return DONE
        if re.search(r"^Stopped (after step|before the first step)", text, re.M) and not (own and any(statuses)):
            return STOPPED
        if statuses and set(statuses) <= {130, -signal.SIGINT} or ("Interrupted" in text and not own):
            return INTERRUPTED
        if not text.strip() and set(statuses) <= {-signal.SIGTERM, -signal.SIGUSR1}:
            return KILLED  # before its first instruction
        if "error: " in text:
            return FAILED
        if not statuses or any(status in (-signal.SIGKILL, 128 + signal.SIGKILL) for status in statuses) or self.killed_by_us:
            return KILLED
        return f"it ends without a word, status {statuses}"

    def saved_in(self):
        """Where the model is, and where its logs and results are: output_dir, or a folder of the run's own elsewhere."""
        found = re.findall(r"Saved the model (?:and logs )?in ([^\s,]+)(?:, and its logs and results in (\S+))?", self.text())
        model, record = found[-1] if found else (self.output_dir, "")
        return self.world.on_host(model), self.world.on_host(record or model)
