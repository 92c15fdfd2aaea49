"""A place of a case's own: a disk (ext4 in a file, so that it can be full, slow, broken, read-only), and one or two machines, each
with processes and a network of its own. Needs root on Linux. When the harness ends, however it ends, all of it is gone."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

from chaos.runs import ADDRESSES

DISK_MB = 128
# The first process of a machine: waits for what has lost its parent.
INIT = "import os, time\nwhile True:\n    try:\n        os.wait()\n    except ChildProcessError:\n        time.sleep(0.05)\n"
EXT4_SHUTDOWN, WITHOUT_JOURNAL = 0x8004587D, 2


class HarnessTrouble(Exception):
    """Something that is no fault of the program under test."""


def what_is_missing():
    """One sentence where worlds cannot be made here, else nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "chaos needs root on Linux: it makes namespaces (unshare), networks (ip) and disks (mount) for its runs."
    for tool in ("unshare", "nsenter", "ip", "tc", "mount", "umount", "mkfs.ext4", "e2fsck", "fsfreeze"):
        if shutil.which(tool) is None:
            return f"chaos needs `{tool}` (Debian: util-linux, iproute2, e2fsprogs), which is not here."
    return ""


def command(*words, patience=30):
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        raise HarnessTrouble(f"{' '.join(map(str, words))} takes longer than {patience} s") from None
    if done.returncode != 0:
        raise HarnessTrouble(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def dies_with_its_parent():
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)


def background(*words):
    return subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, preexec_fn=dies_with_its_parent)


def children_of(pid):
    with contextlib.suppress(OSError):
        return [int(child) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return []


def executable_of(pid):
    try:
        return pathlib.Path(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return pathlib.Path()


def wait_until(condition, what, patience=30):
    end = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > end:
            raise HarnessTrouble(f"waited {patience} s for {what}")
        time.sleep(0.01)
    return found


class Machine:
    """Processes and a network of its own, on the world's disk."""

    def __init__(self, keeper):
        self.holder = background("nsenter", "-t", keeper, "-m", "--", "unshare", "--mount", "--propagation", "slave", "--net", "--pid",
                                 "--fork", "--kill-child", "--mount-proc", sys.executable, "-S", "-E", "-c", INIT)
        self.pid = wait_until(self._first_process, "the first process of a machine")
        self.ip("link", "set", "lo", "up")

    def _first_process(self):
        for pid in children_of(self.holder.pid):
            if executable_of(pid) == pathlib.Path(sys.executable).resolve():
                return pid
        return None

    def inside(self, *words, network_only=False):
        places = ["-n"] if network_only else ["-m", "-n", "-p", f"--wd={os.getcwd()}"]
        return ["nsenter", "-t", str(self.pid), *places, "--", *[str(word) for word in words]]

    def ip(self, *words):
        return command(*self.inside("ip", *words, network_only=True))

    def start(self, words, log, environment):
        """Its exit status is the process's own; the process is this one's only child. In a session of its own: whoever signals a whole
        group does not reach the harness."""
        with open(log, "w") as file:
            return subprocess.Popen(self.inside(*words), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                    env=dict(os.environ) | environment, start_new_session=True, preexec_fn=dies_with_its_parent)

    def lose(self):
        """As when its power fails: whatever runs on it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.holder.kill()
        self.holder.wait(30)
        wait_until(lambda: not os.path.exists(f"/proc/{self.pid}/exe") or not executable_of(self.pid).name, "a machine to be gone")


class World:
    """`folder` is the case's own, on the host; `places` has the empty folders `disk` and `other`, over which each world mounts its own,
    so that paths are the same in every world."""

    def __init__(self, folder, places, num_machines=1):
        self.folder, self.disk, self.other = folder, places / "disk", places / "other"
        self.image, self.num_machines = folder / "disk.ext4", num_machines
        self.machines, self.keeper, self.frozen = [], None, False
        folder.mkdir(parents=True, exist_ok=True)
        self.disk.mkdir(parents=True, exist_ok=True)
        self.other.mkdir(exist_ok=True)
        with open(self.image, "wb") as image:
            image.truncate(DISK_MB << 20)
        command("mkfs.ext4", "-q", "-F", "-m", 0, self.image)
        try:
            self.keeper = background("unshare", "--mount", "--propagation", "private", "sleep", "infinity")
            wait_until(lambda: executable_of(self.keeper.pid).name == "sleep" or "busybox" in executable_of(self.keeper.pid).name,
                       "the keeper of the disks")
            self._in_keeper("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", self.other)
            self._mount()
            self.start_machines()
        except BaseException:
            self.close()
            raise

    def _in_keeper(self, *words):
        return command("nsenter", "-t", self.keeper.pid, "-m", "--", *words)

    def _mount(self):
        self._in_keeper("mount", "-o", "loop,noatime,errors=remount-ro", self.image, self.disk)

    def on_host(self, path):
        """Where the harness finds a file of the world's disks."""
        return pathlib.Path(f"/proc/{self.keeper.pid}/root{path}")

    # Machines.

    def start_machines(self):
        """Those that are lost, anew, with a cable between two."""
        for index in range(self.num_machines):
            if index == len(self.machines):
                self.machines.append(None)
            if self.machines[index] is None:
                self.machines[index] = Machine(self.keeper.pid)
        if self.num_machines == 2 and not self._has_cable():
            first, second = self.machines
            for machine in self.machines:  # what is left of one to a machine that is lost
                with contextlib.suppress(HarnessTrouble):
                    machine.ip("link", "del", "cable")
            first.ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second.pid)
            for machine, address in zip(self.machines, ADDRESSES):
                machine.ip("addr", "add", f"{address}/24", "dev", "cable")
                machine.ip("link", "set", "cable", "up")

    def _has_cable(self):
        return all("cable" in machine.ip("-o", "link") for machine in self.machines)

    def lose_machine(self, index):
        self.machines[index].lose()
        self.machines[index] = None

    def set_link(self, up):
        self.machines[0].ip("link", "set", "cable", "up" if up else "down")

    def slow_link(self, megabits):
        """None: as fast as it can."""
        for machine in self.machines:
            words = ["add", "dev", "cable", "root", "tbf", "rate", f"{megabits}mbit", "burst", "64kbit", "latency", "400ms"]
            command(*machine.inside("tc", "qdisc", *(words if megabits else ["del", "dev", "cable", "root"]), network_only=True))

    # The disk.

    def fill(self):
        """Not a byte is left."""
        filler = os.open(self.on_host(self.disk / "filler"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            end, size = 0, 1 << 26
            while size >= 4096:
                try:
                    os.posix_fallocate(filler, end, size)
                    end += size
                except OSError:
                    size //= 2
        finally:
            os.close(filler)

    def make_room(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.on_host(self.disk / "filler"))

    def freeze(self):
        """Whoever writes waits, until thaw()."""
        self.frozen = True
        self._in_keeper("fsfreeze", "-f", self.disk)

    def thaw(self):
        if self.frozen:
            self._in_keeper("fsfreeze", "-u", self.disk)
            self.frozen = False

    def become_read_only(self):
        """As ext4 does it by itself where it finds an error, whatever is open."""
        mounts = pathlib.Path(f"/proc/{self.keeper.pid}/mountinfo").read_text()
        device = re.search(rf" {re.escape(str(self.disk))} .* /dev/(loop\d+) ", mounts)
        if device is None:
            raise HarnessTrouble(f"{self.disk} is not mounted from a loop device")
        pathlib.Path(f"/sys/fs/ext4/{device[1]}/trigger_fs_error").write_text("1")

    def break_disk(self):
        """Nothing more reaches it, and what was not synced never will: a power cut, or a disk that is pulled."""
        folder = os.open(self.on_host(self.disk), os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_SHUTDOWN, struct.pack("I", WITHOUT_JOURNAL))
        finally:
            os.close(folder)

    def reboot(self):
        """All machines and the disk are started again; what was on the disk, as far as it had reached it, is there."""
        for index, machine in enumerate(self.machines):
            if machine is not None:
                self.lose_machine(index)
        self.thaw()

        def unmounted():
            with contextlib.suppress(HarnessTrouble):
                return self._in_keeper("umount", self.disk) is not None
            return False
        wait_until(unmounted, "the disk to be unmounted")
        # 1: mistakes were mended, which a broken journal leaves.
        done = subprocess.run(["e2fsck", "-fy", self.image], capture_output=True, text=True, check=False)
        if done.returncode > 1:
            raise HarnessTrouble(f"e2fsck: {done.stdout}{done.stderr}")
        self._mount()
        self.start_machines()

    def close(self):
        """Ends whatever still runs, and takes the disks away."""
        with contextlib.suppress(HarnessTrouble):
            self.thaw()
        for machine in self.machines:
            if machine is not None:
                with contextlib.suppress(HarnessTrouble, subprocess.TimeoutExpired):
                    machine.lose()
        self.machines = []
        if self.keeper is not None:
            self.keeper.kill()
            self.keeper.wait()
        self.image.unlink(missing_ok=True)
