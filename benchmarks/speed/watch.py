"""Runs one framework in a process of its own and watches it from outside: memory and CPU use of its
process tree, and what else the machine does meanwhile. Linux only (/proc)."""

import bisect
import dataclasses
import json
import os
import re
import subprocess
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.05  # step log, memory, CPU
# Until the first step has ended, which is warm-up, where memory rises up to the moment that training
# starts: a gigabyte takes a quarter of a second.
RISING_SAMPLE_SECONDS = 0.002
CHILDREN_SECONDS = 1.0  # new children: a costly look-up


@dataclasses.dataclass
class Sample:
    time: float
    rss: int  # bytes, now
    peak: int  # bytes, highest since the sample before
    unread: int  # bytes of mapped weight files that are not in memory yet
    own: float  # CPU seconds of the watched tree
    foreign: float  # CPU seconds since boot of all but the watched tree and this process; steal too


@dataclasses.dataclass
class Step:
    seconds: float
    own: float  # CPU seconds of the framework
    foreign: float  # cores that others took, on average
    logged: dict[str, float]  # what the framework logged: loss, grad_norm, ...

    @property
    def loss(self) -> float:
        return self.logged["loss"]


@dataclasses.dataclass
class Run:
    steps: list[Step]
    level: int  # bytes before training, all weights counted
    peak: int  # bytes while training


def process_tree(pid: int) -> list[int]:
    """The process and all that came of it."""
    pids, todo = [], [pid]
    while todo:
        current = todo.pop()
        pids.append(current)
        try:
            for task in os.listdir(f"/proc/{current}/task"):
                todo += map(int, Path(f"/proc/{current}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return pids


def busy_seconds() -> float:
    """All CPU time that was not idle, stolen time too, since boot."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / TICK


def _memory(pid: int) -> tuple[int, int]:
    """(bytes now, highest since the last call)."""
    now = peak = 0
    for line in Path(f"/proc/{pid}/status").read_text().split("\n"):
        if line.startswith("VmRSS:"):
            now = int(line.split()[1]) * 1024
        elif line.startswith("VmHWM:"):
            peak = int(line.split()[1]) * 1024
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # restarts VmHWM (proc(5))
    except OSError:
        peak = now
    return now, max(now, peak)


def _unread_weights(pid: int) -> int:
    """Frameworks map the weights' files and read them at first use. What was not read yet belongs to
    the level before training, not to training's growth."""
    mappings = Path(f"/proc/{pid}/smaps").read_text()
    found = re.findall(r"\.safetensors\nSize: +(\d+) kB\n(?:.*\n){0,3}?Rss: +(\d+) kB", mappings)
    return sum(int(size) - int(rss) for size, rss in found) * 1024


class _Tree:
    """CPU seconds and memory of a process and its descendants."""

    def __init__(self, pid: int):
        self.pid, self.cpu = pid, {}
        self.pids, self.due = [pid], 0.0

    def sample(self, weights_read: bool) -> Sample:
        rss = peak = unread = 0
        if time.time() >= self.due:
            self.pids, self.due = process_tree(self.pid), time.time() + CHILDREN_SECONDS
        for pid in self.pids:
            try:
                now, high = _memory(pid)
                unread += 0 if weights_read else _unread_weights(pid)
                stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                self.cpu[pid] = (int(stat[11]) + int(stat[12])) / TICK
            except (OSError, IndexError):
                continue
            rss, peak = rss + now, peak + high
        own = sum(self.cpu.values())
        return Sample(time.time(), rss, peak, unread, own,
                      busy_seconds() - own - sum(os.times()[:2]))


class StepLog:
    """Reads a growing file of JSON lines and remembers when each line was written, or one of its
    successors where a reading finds several."""

    def __init__(self, path: Path):
        self.path, self.offset, self.lines = path, 0, []

    def poll(self) -> None:
        try:
            if os.stat(self.path).st_size <= self.offset:
                return
        except OSError:
            return
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read()
            written = os.fstat(file.fileno()).st_mtime
        whole = data.rfind(b"\n") + 1
        self.offset += whole
        for line in data[:whole].splitlines():
            self.lines.append((written, json.loads(line)))


def watch(command: list[str], environment: dict[str, str], log: Path, step_log: StepLog,
          limit_seconds: float, copies_weights: bool = False) -> list[Sample]:
    """Runs `command` to its end. `copies_weights`: it has read all weights when training starts, a
    moment after. Raises SystemExit with the log's tail when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    tree, samples = _Tree(process.pid), []
    stop = time.time() + limit_seconds
    try:
        while process.poll() is None:
            step_log.poll()
            # A look at all mappings is dear: not once the first step is logged.
            started = len(step_log.lines) > 1
            samples.append(tree.sample(started or copies_weights))
            if time.time() > stop:
                raise SystemExit(f"{command[0]} ran longer than {limit_seconds:.0f} s; see {log}")
            rising = copies_weights and not started
            time.sleep(RISING_SAMPLE_SECONDS if rising else SAMPLE_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    step_log.poll()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise SystemExit(f"{' '.join(command)}\nfailed with status {process.returncode}:\n{tail}")
    return samples


def _between(samples: list[Sample], of, start: float, end: float) -> float:
    """By how much a number that of(sample) gives grew; linear between samples."""
    def at(when: float) -> float:
        next_ = bisect.bisect_left(samples, when, key=lambda s: s.time)
        if next_ == 0 or next_ == len(samples):
            return of(samples[min(next_, len(samples) - 1)])
        before, after = samples[next_ - 1], samples[next_]
        part = (when - before.time) / (after.time - before.time)
        return of(before) + part * (of(after) - of(before))

    return at(end) - at(start)


def summarise(samples: list[Sample], begin: float, ends: list[float],
              logged: list[dict[str, float]]) -> Run:
    """`begin`: when training started; `ends`: when each step ended. The first step is `begin` to
    ends[0]; the caller drops it as warm-up."""
    # Samples of a process that is ending have no memory left.
    samples = [s for s in samples if s.rss > 0]
    before = samples[max(0, bisect.bisect_right(samples, begin, key=lambda s: s.time) - 1)]
    level = before.rss + before.unread
    during = [s.peak for s in samples if begin < s.time <= ends[-1] + SAMPLE_SECONDS]
    steps, start = [], begin
    for end, numbers in zip(ends, logged):
        own = _between(samples, lambda s: s.own, start, end)
        foreign = _between(samples, lambda s: s.foreign, start, end)
        steps.append(Step(end - start, own, max(0.0, foreign) / max(end - start, 1e-9), numbers))
        start = end
    return Run(steps, level, max(during, default=level))
