"""Two network namespaces joined by a link whose speed is limited: two machines on a slow network, on
one machine. Linux, root, and the commands `ip` and `tc`."""

import os
import shutil
import signal
import subprocess

REMEDY = ("--slow-link makes two network namespaces and a throttled link between them: it needs root "
          "(or CAP_NET_ADMIN and CAP_SYS_ADMIN; in a container, --privileged), the commands `ip` and "
          "`tc` (Debian: apt-get install iproute2), and a kernel with veth and sch_tbf.")


class LinkError(SystemExit):
    pass


def _run(*words: str) -> None:
    done = subprocess.run(words, text=True, capture_output=True)
    if done.returncode != 0:
        raise LinkError(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}\n"
                        f"{REMEDY}")


def _interrupt(number, frame):
    raise KeyboardInterrupt


class SlowLink:
    """A `place` of run_ranks(): a node for each of two ranks. Everything is removed at the end, also
    on Ctrl-C and SIGTERM."""

    nodes = 2

    def __init__(self):
        missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        if missing:
            raise LinkError(f"{' and '.join(missing)} not found. {REMEDY}")
        if os.geteuid() != 0:
            raise LinkError(f"not root. {REMEDY}")
        number = os.getpid() % 0x10000
        self.spaces = [f"longspan-{number}-{rank}" for rank in range(2)]
        self.devices = [f"ls{number}v{rank}" for rank in range(2)]
        # Seen by nobody else: both ends leave the machine's own namespace.
        self.addresses = [f"10.231.7.{1 + rank}" for rank in range(2)]
        self.address = self.addresses[0]

    def __enter__(self):
        self.old_handler = signal.signal(signal.SIGTERM, _interrupt)
        try:
            for space in self.spaces:
                _run("ip", "netns", "add", space)
            _run("ip", "link", "add", self.devices[0], "netns", self.spaces[0], "type", "veth",
                 "peer", "name", self.devices[1], "netns", self.spaces[1])
            for space, device, address in zip(self.spaces, self.devices, self.addresses):
                _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", device)
                _run("ip", "-n", space, "link", "set", device, "up")
                _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "netns", "exec", self.spaces[0], "true")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *reason):
        self._remove()

    def _remove(self) -> None:
        # A second Ctrl-C must not stop it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for space in self.spaces:  # with a namespace goes its end of the link
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, self.old_handler)

    def throttle(self, bits_per_second: float) -> None:
        """Both ends send at most so much. The bucket holds a few of the large packets that the two
        ends hand each other (64 KiB); what waits longer than 200 ms is dropped, as TCP expects."""
        for space, device in zip(self.spaces, self.devices):
            _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf",
                 "rate", f"{bits_per_second:.0f}bit", "burst", "256kb", "latency", "200ms")

    def prefix(self, rank: int) -> list[str]:
        return ["ip", "netns", "exec", self.spaces[rank]]

    def variables(self, rank: int) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": self.devices[rank]}
