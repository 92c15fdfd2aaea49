"""What is done to a run, and what is promised for it: which ends are allowed, and how long they may take.

A fault's `strike` does it and returns when it is done with it. Whatever is allowed, the run is started again until it is done, and
then compared, bit for bit, with one that nobody disturbed."""

import dataclasses
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable

from chaos import moments
from chaos.live import FAILED, INTERRUPTED, KILLED, STOPPED, found_no_memory_to_load, has_begun
from chaos.runs import ALONE, LAUNCHER, MACHINES, RANKS, STEPS, TORCHRUN_MACHINES

# docs/signals-and-errors.md: the others end within ddp_timeout seconds, and some 20 for the diagnosis. torchrun gives workers 30
# seconds to end before it kills them, which a stopped one needs.
DIAGNOSIS, TORCHRUN_PATIENCE = 20, 30
# Launchers that have not met wait for each other so long at least, and those whose workers are done ddp_timeout.
LAUNCHERS_MEET = 60


def spare_waiting_torchrun(scene, pids):
    """A torchrun of the user's own waits minutes for another machine's before it starts anything."""
    if scene.kind.start == TORCHRUN_MACHINES and not scene.live.workers():
        end = time.monotonic() + 5
        while len(scene.live.tops) < scene.kind.num_machines and time.monotonic() < end:
            scene.live.processes()
            time.sleep(0.02)
        scene.spared |= set(scene.live.tops.values()) - set(pids)


# Kills.


def kill(what, choose):
    def strike(scene):
        pids = choose(scene)
        scene.notes.append(f"SIGKILL to {what} {pids}")
        scene.missed = not pids
        spare_waiting_torchrun(scene, pids)
        if scene.kind.start == TORCHRUN_MACHINES:
            scene.ends = scene.ends | {STOPPED}  # it tells the killed one's neighbours to stop
        if what == "launcher" and scene.kind.num_machines == 2:
            # The other machine's waits for this one longer than workers do, before they meet and where its own are done.
            scene.spared |= set(scene.live.tops.values()) - set(pids)
        scene.now()
        scene.live.kill_all(pids)
    return strike


def lose_machine(scene):
    index = scene.rng.randrange(2)
    scene.notes.append(f"machine {index} is gone")
    mine = {scene.live.tops[number] for number in scene.live.tops if number == index}
    scene.live.processes()
    scene.live.killed_by_us |= mine
    scene.now()
    scene.world.lose_machine(index)
    # The launcher of the other one may wait for its half longer than workers do.
    scene.spared |= set(scene.live.launchers())


def cut_power(scene):
    scene.notes.append("nothing more reaches the disk, and all is killed")
    scene.now()
    scene.world.break_disk()
    scene.live.kill_all()
    scene.live.wait(time.monotonic() + 20)
    scene.world.reboot()


# Stops.


def stop(choose, least, most, for_good=False):
    """For a share of ddp_timeout between these."""
    def strike(scene):
        seconds = scene.rng.uniform(least, most) * scene.ddp_timeout
        pids = choose(scene)
        scene.missed = not pids
        scene.now()
        for pid in pids:
            scene.live.signal(pid, signal.SIGSTOP)
        scene.notes.append(f"SIGSTOP to {pids}{'' if for_good else f' for {seconds:.1f} s'}")
        if for_good:
            # Of two launchers the other one may wait for this one.
            scene.stopped |= set(pids)
            scene.spared |= set(pids) | set(scene.live.launchers() if scene.kind.num_machines == 2 else [])
            return
        scene.wait(seconds)
        for pid in pids:
            scene.live.signal(pid, signal.SIGCONT)
        scene.now()
    return strike


def tell(numbers):
    def strike(scene):
        number = scene.rng.choice(numbers)
        whom = scene.rng.choice(["one worker", "the launcher", "everyone"])
        everyone = scene.live.processes()
        pids = {"one worker": scene.live.workers()[:1], "the launcher": scene.live.launchers()[:1]}.get(whom) or everyone
        scene.notes.append(f"{number.name} to {whom} {pids}")
        scene.missed = not pids
        spare_waiting_torchrun(scene, pids)
        if whom == "one worker" and not scene.live.says(moments.FIRST_WORD):
            # The others do not know it yet, and wait for it as long as for one that never comes.
            scene.ends = FAILS
        scene.now()
        for pid in pids:
            scene.live.signal(pid, number)
    return strike


# Links.


def cut_link(least=0.0, most=0.0, for_good=False):
    def strike(scene):
        scene.now()
        scene.world.set_link(up=False)
        if for_good:
            scene.spared |= set(scene.live.launchers())
            return
        seconds = scene.rng.uniform(least, most) * scene.ddp_timeout
        scene.notes.append(f"for {seconds:.1f} s")
        scene.wait(seconds)
        scene.world.set_link(up=True)
        scene.now()
    return strike


def slow_link(scene):
    megabits = scene.rng.choice([5, 20])
    scene.notes.append(f"{megabits} Mbit/s for 5 s")
    scene.world.slow_link(megabits)
    scene.wait(5)
    scene.world.slow_link(None)
    scene.now()


def strangers(scene):
    """Connections to every open port, with what nobody has asked for."""
    script = ("import os, random, socket, time\n"
              f"random.seed({scene.rng.randrange(1 << 30)})\n"
              "ports = {int(line.split()[1].split(':')[1], 16) for name in ('tcp', 'tcp6') for line in open('/proc/net/' + name)\n"
              "         if line.split()[3] == '0A'}\n"
              "opened = []\n"
              "for _ in range(10):\n"
              "    for port in ports:\n"
              "        try:\n"
              "            opened.append(socket.create_connection(('127.0.0.1', port), 1))\n"
              "            opened[-1].sendall(random.randbytes(random.choice([0, 1, 4, 100, 5000])))\n"
              "        except OSError:\n"
              "            pass\n"
              "    time.sleep(0.05)\n"
              "time.sleep(3)\n")
    machine = scene.world.machines[0]
    helper = machine.start(["python3", "-c", script], scene.live.logs[0].with_suffix(".strangers"), {})
    scene.now()
    helper.wait(60)


# Disks.


def fill_disk(scene):
    how = scene.rng.choice(["room is made", "room is made", "given up"])
    scene.world.fill()
    scene.notes.append(how)
    end = time.monotonic() + scene.rng.uniform(1, 6)
    waits = False
    while time.monotonic() < end + (30 if how == "given up" else 0) and not scene.live.is_over() and not waits:
        waits = how == "given up" and scene.live.says("waits for room")
        time.sleep(0.02)
    if waits:
        for pid in scene.live.workers():
            scene.live.signal(pid, signal.SIGINT)
        scene.now()
        scene.wait(scene.ddp_timeout + DIAGNOSIS)
    else:
        scene.now()
    scene.world.make_room()


def fill_disk_for_good(scene):
    """The trained model goes to fallback_output_dir."""
    scene.world.fill()
    scene.now()


def read_only(scene):
    scene.now()
    scene.world.become_read_only()


def break_disk(scene):
    scene.now()
    scene.world.break_disk()


def slow_disk(scene):
    scene.notes.append("who writes waits, again and again, for 6 s")
    end = time.monotonic() + 6
    while time.monotonic() < end and not scene.live.is_over():
        scene.world.freeze()
        time.sleep(scene.rng.uniform(0.2, 0.3 * scene.ddp_timeout))
        scene.world.thaw()
        time.sleep(0.1)
    scene.now()


def hanging_disk(scene):
    seconds = scene.rng.uniform(1.2, 2) * scene.ddp_timeout
    scene.notes.append(f"who writes waits for {seconds:.1f} s")
    scene.world.freeze()
    time.sleep(seconds)  # also where the run is over: nothing ends while it waits for the disk
    scene.world.thaw()
    scene.now()


# Two runs, one folder.


def pause(live, seconds):
    workers = live.workers()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in workers:
            live.signal(pid, number)
        time.sleep(seconds if number == signal.SIGSTOP else 0)


def checkpoints_of(live):
    return set(live.world.on_host(live.output_dir).glob("checkpoint-*"))


def second_run(at_once=False, other_machine=False):
    """Refused by a message that names the owner; the first one is undisturbed. The second would train something else."""
    def strike(scene):
        # The same command twice; or one that would spoil what the first one makes, but not what it has made.
        changes = {} if at_once else dict(learning_rate=3e-3)
        before = checkpoints_of(scene.live)
        second = scene.start_second(changes, 1 if other_machine else 0)
        passed_at = None
        end = time.monotonic() + 60 + 2 * scene.ddp_timeout
        first_over, second_was_first = None, False
        while not second.is_over() and time.monotonic() < end:
            if passed_at is None and second.says(moments.FIRST_LOSS):
                passed_at = time.monotonic()
                second_was_first = not scene.live.says(moments.FIRST_LOSS)
            if first_over is None and scene.live.is_over():
                first_over = time.monotonic()
            if passed_at is not None and first_over is None and not at_once:
                break  # nobody has refused it
            if first_over is None and not at_once:
                pause(scene.live, 0.3)  # slows the first one down: the second takes some seconds to ask
            time.sleep(0.05)
        hangs = not second.is_over() and passed_at is None
        text = second.text()
        refused = second.is_over() and second.end() == FAILED and passed_at is None
        # One of the two came when the other had trained all, and had let the folder go.
        in_turn = any(f"step {STEPS} of {STEPS}: nothing is left to train" in said for said in (text, scene.live.text()))
        if second_was_first and not at_once:
            # The first one would go on from what it has saved: whoever ends it removes that.
            for pid in second.processes():
                second.signal(pid, signal.SIGSTOP)
            for folder in checkpoints_of(second) - before:
                shutil.rmtree(folder)
        second.kill_all()
        second.wait(time.monotonic() + 20)
        if refused and not ("output_dir" in text and re.search(r"process \d+", text)):
            scene.wrong = "the second run is refused, but not by a message that names the folder and the process that owns it"
        elif refused and at_once and scene.live.is_over() and scene.live.end() == FAILED:
            scene.wrong = "each of the two is refused"
        elif not refused and at_once and scene.live.end() == FAILED:
            scene.wrong = "" if not hangs else "the second run hangs"  # that one was first
        elif not refused and in_turn:
            scene.notes.append("one came when the other was done")
        elif not refused and second_was_first:
            scene.notes.append("the second run was first; it was killed, and the first one waited until it was gone")
        elif not refused and (first_over is None or (passed_at is not None and passed_at < first_over)):
            scene.wrong = "a second run trains into the same folder" if not hangs else "the second run hangs"
        elif not refused:
            scene.notes.append("the first run was over before the second one asked")
        scene.now()
    return strike


def out_of_memory(scene):
    pids = scene.pick("worker", scene.live.workers())
    # Libraries that are still being loaded end the process before its first instruction.
    num_loading = sum(not has_begun(pid) for pid in pids)
    scene.excuses = lambda end, text: end == "it says 'terminate called'" and found_no_memory_to_load(text, num_loading)
    scene.now()
    for pid in pids:
        try:
            resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
        except ProcessLookupError:
            pass


def any_kind(kind):
    return True


def several(kind):
    return kind.num_processes > 1


def starts(*ways):
    return lambda kind: kind.start in ways


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    strike: Callable
    ends: frozenset  # besides DONE, which the comparison judges
    suits: Callable = any_kind
    moments: tuple = tuple(moments.ALL)
    bound: str = "ends"  # ends: by itself within ddp_timeout + 20. runs on: undisturbed time besides.
    reboots: bool = False  # the disk is no more to be written to
    changes: Callable = lambda world: {}  # of the configuration
    num_machines: int = 1  # at least

    def launcher_seconds(self, scene_kind, ddp_timeout, undisturbed):
        """The bound for launchers of the program's own that are not waited for with the workers."""
        return self.seconds(scene_kind, ddp_timeout, undisturbed) + max(LAUNCHERS_MEET, ddp_timeout)

    def seconds(self, scene_kind, ddp_timeout, undisturbed):
        """The bound on the time from the fault to the end of all processes that are waited for."""
        bound = ddp_timeout + DIAGNOSIS
        if self.bound == "a stopped worker" and scene_kind.launched:
            bound += TORCHRUN_PATIENCE
        if self.bound == "runs on" or scene_kind.num_restarts:
            bound += 3 * undisturbed
        return bound


def worker(scene):
    return scene.pick("worker", scene.live.workers())


def launcher(scene):
    return scene.pick("launcher", scene.live.launchers())


def everyone(scene):
    return scene.live.processes()


FAILS, GOES_ON = frozenset({FAILED, KILLED}), frozenset()
WORKING = (moments.LOADING, moments.TRAINING, moments.SAVING, moments.EVALUATING, moments.LEAVING)
TWO_MACHINES = starts(MACHINES, TORCHRUN_MACHINES)
LAUNCHED = starts(LAUNCHER, MACHINES, TORCHRUN_MACHINES)
STOPS = FAILS | {STOPPED}
FAULTS = [
    Fault("a rank is killed", kill("worker", worker), FAILS, several),
    Fault("the launcher is killed", kill("launcher", launcher), STOPS, LAUNCHED),
    Fault("everything is killed", kill("all", everyone), FAILS),
    Fault("a machine is lost", lose_machine, STOPS, TWO_MACHINES),
    Fault("power cut", cut_power, FAILS),
    Fault("a rank is stopped", stop(worker, 0, 0, for_good=True), FAILS, several, WORKING, "a stopped worker"),
    Fault("a rank is stopped for a while", stop(worker, 0.1, 0.5), GOES_ON, several, WORKING, "runs on"),
    Fault("the launcher is stopped", stop(launcher, 0, 0, for_good=True), FAILS, LAUNCHED),
    Fault("the launcher is stopped for a while", stop(launcher, 0.1, 0.5), GOES_ON, LAUNCHED, WORKING, "runs on"),
    Fault("all are stopped for a while", stop(everyone, 0.5, 1.8), FAILS, any_kind, tuple(moments.ALL), "runs on"),
    Fault("told to stop", tell([signal.SIGTERM, signal.SIGUSR1]), frozenset({STOPPED, KILLED})),
    Fault("interrupted", tell([signal.SIGINT]), frozenset({INTERRUPTED}) | FAILS),
    Fault("the link is cut", cut_link(for_good=True), FAILS, TWO_MACHINES),
    Fault("the link is cut for a while", cut_link(0.1, 0.5), FAILS, TWO_MACHINES, tuple(moments.ALL), "runs on"),
    Fault("the link is slow", slow_link, GOES_ON, TWO_MACHINES, tuple(moments.ALL), "runs on"),
    Fault("strangers connect", strangers, GOES_ON, several, tuple(moments.ALL), "runs on"),
    Fault("the disk is full", fill_disk, FAILS | {INTERRUPTED}, any_kind, tuple(moments.ALL), "runs on"),
    Fault("the disk is full, another is there", fill_disk_for_good, FAILS, any_kind, WORKING, "runs on",
          changes=lambda world: dict(fallback_output_dir=str(world.other))),
    Fault("the disk becomes read-only", read_only, FAILS, any_kind, tuple(moments.ALL), "runs on", reboots=True),
    Fault("the disk breaks", break_disk, FAILS, any_kind, tuple(moments.ALL), "runs on", reboots=True),
    Fault("the disk is slow", slow_disk, GOES_ON, any_kind, tuple(moments.ALL), "runs on"),
    Fault("the disk hangs", hanging_disk, FAILS, any_kind, tuple(moments.ALL), "runs on"),
    Fault("a second run", second_run(), GOES_ON, starts(ALONE, RANKS, LAUNCHER), WORKING[:-1], "runs on"),
    Fault("a second run, elsewhere", second_run(other_machine=True), GOES_ON, starts(ALONE, RANKS, LAUNCHER), WORKING[:-1], "runs on",
          num_machines=2),
    Fault("two runs at once", second_run(at_once=True), FAILS, starts(ALONE, LAUNCHER), (moments.AT_ONCE,), "runs on"),
    Fault("a rank runs out of memory", out_of_memory, FAILS, several, WORKING),
]
BY_NAME = {fault.name: fault for fault in FAULTS}
