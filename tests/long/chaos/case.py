"""One case from start to end: a run, its faults, starts until it is done, and the comparison."""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import threading
import time

from chaos import comparing, faults, moments, runs
from chaos.live import DONE, FAILED, KILLED, Live, state_of
from chaos.scene import Scene
from chaos.world import HarnessTrouble, World, children_of, executable_of

CASE_LIMIT = 1200  # seconds: the harness's own watchdog


@dataclasses.dataclass
class Outcome:
    """What became of one fault."""

    case: int
    kind: str
    fault: str
    moment: str
    struck: bool = False  # the run had not ended before
    end: str = ""
    seconds: float = 0  # from the fault to the end of the last process
    bound: float = 0
    launcher_seconds: float = 0  # the same for launchers that may end after the others; 0: there was none
    launcher_bound: float = 0
    hang: bool = False
    wrong: str = ""  # an end that is not promised
    notes: str = ""


@dataclasses.dataclass
class Result:
    case: int
    outcomes: list
    differences: list = dataclasses.field(default_factory=list)
    trouble: str = ""  # the harness's own
    kept: str = ""
    replay: str = ""

    def is_bad(self):
        return bool(self.differences or self.trouble or any(o.hang or o.wrong for o in self.outcomes))


class Undisturbed:
    """Finished runs that nobody disturbed, one of each kind; made when they are asked for."""

    def __init__(self, places, ddp_timeout):
        self.places, self.ddp_timeout = places, ddp_timeout
        self.known, self.lock = {}, threading.Lock()

    def __call__(self, kind):
        with self.lock:
            mine = self.known.setdefault(kind.digest, threading.Lock())
        with mine:
            folder = self.places / "undisturbed" / kind.digest
            if not (folder / "timeline.json").exists():
                self._make(kind, folder)
            return folder / "out", moments.Timeline(**json.loads((folder / "timeline.json").read_text()))

    def _make(self, kind, folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        world = World(folder / "world", self.places, kind.num_machines)
        try:
            settings = runs.config_of(kind, self.places / "inputs", world.disk / "run", self.ddp_timeout)
            live, timeline = Live(world, kind, settings, folder / "start"), moments.Timeline()
            while not live.is_over():
                timeline.watch(live)
                if time.monotonic() > live.began + 300:
                    raise HarnessTrouble(f"an undisturbed run of {kind.name} takes longer than 300 s: {folder}")
                time.sleep(0.01)
            timeline.watch(live)
            timeline.end = time.monotonic() - live.began
            if live.end() != DONE:
                raise HarnessTrouble(f"an undisturbed run of {kind.name} fails: {live.end()}\n{live.text()[-2000:]}")
            shutil.copytree(world.on_host(world.disk / "run"), folder / "out")
        finally:
            world.close()
        (folder / "timeline.json").write_text(json.dumps(dataclasses.asdict(timeline)))


def stacks(pids):
    """Where processes hang, as far as the system tells."""
    lines = []
    for pid in pids:
        for task in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
            with contextlib.suppress(OSError):
                lines.append(f"{pid}/{task.name} {(task / 'comm').read_text().strip()} {(task / 'wchan').read_text()} "
                             f"{(task / 'stack').read_text().split(chr(10))[:4]}")
    return "\n".join(lines)


class Player:
    """Plays one case."""

    def __init__(self, case, places, undisturbed, ddp_timeout):
        self.case, self.places, self.undisturbed, self.ddp_timeout = case, places, undisturbed, ddp_timeout
        self.folder = places / "cases" / f"{case.seed}-{case.number}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.rng, self.num_starts, self.world = case.rng(), 0, None
        self.result = Result(case.number, [], replay=case.replay(ddp_timeout))
        self.changes, self.out_of_time, self.disk_lost = {}, False, False

    def settings(self, **changes):
        return runs.config_of(self.case.kind, self.places / "inputs", self.world.disk / "run", self.ddp_timeout) | self.changes | changes

    def start(self):
        self.num_starts += 1
        return Live(self.world, self.case.kind, self.settings(), self.folder / f"start{self.num_starts}")

    def play(self, keep):
        """keep: the folder for what went wrong."""
        watchdog = threading.Timer(CASE_LIMIT, self.give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            out, timeline = self.undisturbed(self.case.kind)
            self.world = World(self.folder / "world", self.places, self.case.num_machines)
            finished = self.disturb(timeline) or self.go_on(timeline)
            if finished is not None:
                self.result.differences += comparing.differences(out, *finished.saved_in(), self.disk_lost)
        except Exception as error:  # whatever it is: it is told, and the next case comes
            self.result.trouble = f"{type(error).__name__}: {error}"
        finally:
            watchdog.cancel()
            if self.out_of_time:
                self.result.trouble = f"the case took longer than {CASE_LIMIT} s"
            if self.result.is_bad():
                self.keep(keep / self.folder.name)
            if self.world is not None:
                self.world.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.result

    def give_up(self):
        self.out_of_time = True
        if self.world is not None:
            self.world.close()

    def disturb(self, timeline):
        """Each fault in a start of its own. The start that is done, where one is."""
        for planned in self.case.planned:
            fault = faults.BY_NAME[planned.fault]
            outcome = Outcome(self.case.number, self.case.kind.name, fault.name, planned.moment)
            self.changes |= fault.changes(self.world)
            live = self.start()
            outcome.struck = moments.wait_for_moment(planned.moment, live, timeline, self.rng, 60 + 3 * timeline.end)
            if not outcome.struck:
                if not live.wait(time.monotonic() + 60):
                    outcome.struck = outcome.hang = True
                    live.kill_all()
                    live.wait(time.monotonic() + 20)
                self.result.outcomes.append(outcome)
                outcome.end = live.end()
                if outcome.end == DONE:
                    return live
                outcome.wrong = f"nothing was done to it yet, and it ends: {outcome.end}: {last_words(live)}"
                continue
            self.strike(fault, live, outcome, timeline)
            self.result.outcomes.append(outcome)
            if outcome.end == DONE:
                return live
        return None

    def strike(self, fault, live, outcome, timeline):
        count = [0]

        def start_second(changes, machine):
            count[0] += 1
            return Live(self.world, self.case.kind, self.settings(**changes), self.folder / f"start{self.num_starts}-second{count[0]}",
                        machine, runs.PORT + 1)
        scene = Scene(live, self.world, self.rng, self.case.kind, self.ddp_timeout, start_second)
        fault.strike(scene)
        outcome.struck = not scene.missed
        outcome.bound = fault.seconds(self.case.kind, self.ddp_timeout, timeline.end)
        outcome.hang = not live.wait(scene.struck_at + outcome.bound, scene.spared)
        outcome.seconds = time.monotonic() - scene.struck_at
        if not outcome.hang:
            self.wait_for_launchers(fault, live, scene, outcome, timeline)
        if outcome.hang:
            (self.folder / f"start{self.num_starts}.hangs").write_text(stacks(live.processes()))
        outcome.end = "hangs" if outcome.hang else live.end()
        self.clear_away(live, scene)
        if scene.wrong:
            outcome.wrong = scene.wrong
        elif not outcome.hang and outcome.end not in fault.ends | scene.ends | {DONE} and not scene.excuses(outcome.end, live.text()):
            outcome.wrong = f"it is {outcome.end!r}, which is not promised: {last_words(live)}"
        outcome.notes = "; ".join(scene.notes)
        self.mend(fault)

    def wait_for_launchers(self, fault, live, scene, outcome, timeline):
        """Of the program's own, those that may end after the workers do so in time too. One that is stopped cannot, and a torchrun
        of the user's own waits as long as that has been told to."""
        stay = scene.stopped
        if self.case.kind.start != runs.MACHINES or not any(map(state_of, scene.spared - stay)):
            return
        outcome.launcher_bound = fault.launcher_seconds(self.case.kind, self.ddp_timeout, timeline.end)
        outcome.hang = not live.wait(scene.struck_at + outcome.launcher_bound, stay)
        outcome.launcher_seconds = time.monotonic() - scene.struck_at

    def clear_away(self, live, scene):
        """What a user or a cluster does before it starts the run again: ends what is left."""
        if scene.spared and not live.is_over():
            for pid in scene.spared:
                state = state_of(pid)
                live.signal(pid, faults.signal.SIGKILL if state and state[0] == "T" else faults.signal.SIGTERM)
            if not live.wait(time.monotonic() + 15):
                scene.notes.append("what was left had to be killed")
        live.kill_all()
        if not live.wait(time.monotonic() + 20):
            raise HarnessTrouble(f"processes {live.processes()} cannot be killed")
        left = [pid for machine in self.world.machines if machine for pid in children_of(machine.pid)
                if state_of(pid) and executable_of(pid) == runs.PROGRAM.resolve()]
        if left:
            scene.wrong = scene.wrong or f"processes {left} are left behind"

    def mend(self, fault):
        self.world.thaw()
        if fault.reboots:
            self.world.reboot()
        self.disk_lost |= fault.reboots or fault.name == "power cut"
        self.world.start_machines()
        self.world.make_room()
        if self.world.num_machines == 2:
            self.world.set_link(up=True)

    def go_on(self, timeline):
        """Started again without a fault: it must be done then."""
        live = self.start()
        if not live.wait(live.began + 90 + 3 * timeline.end):
            self.result.differences.append("started again it hangs")
            (self.folder / f"start{self.num_starts}.hangs").write_text(stacks(live.processes()))
            live.kill_all()
        elif live.end() != DONE:
            self.result.differences.append(f"started again it is {live.end()!r}: {last_words(live)}")
        else:
            return live
        return None

    def keep(self, folder):
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("world"))
        if self.world is not None and self.world.keeper is not None:
            for disk in (self.world.disk, self.world.other):
                with contextlib.suppress(OSError, shutil.Error):
                    shutil.copytree(self.world.on_host(disk), folder / disk.name, dirs_exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "case.json").write_text(json.dumps(dataclasses.asdict(self.result) | dict(
            planned=[dataclasses.asdict(planned) for planned in self.case.planned],
            kind=dataclasses.asdict(self.case.kind)), indent=1))
        self.result.kept = str(folder)


def last_words(live):
    """Its errors, or its last line."""
    lines = [line.strip() for line in live.text().splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line or "Error" in line]
    return " / ".join((errors or lines[-1:] or ["nothing is said"])[:3])[:600]


__all__ = ["FAILED", "KILLED", "Outcome", "Player", "Result", "Undisturbed"]
