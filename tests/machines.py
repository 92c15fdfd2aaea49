"""Network namespaces in the place of machines."""

import contextlib
import os
import subprocess

import pytest


@contextlib.contextmanager
def machines(count):
    """Network namespaces at a switch; the names, in the order of addresses 10.78.0.1 and so on."""
    switch, *names = (f"longspan-{os.getpid()}-{side}" for side in ["switch", *range(count)])

    def run(*words):
        subprocess.run(words, check=True, capture_output=True, text=True)

    try:
        try:
            for name in (switch, *names):
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", switch, "link", "set", "bridge", "up")
            for number, name in enumerate(names):
                run("ip", "link", "add", f"port{number}", "netns", switch, "type", "veth", "peer", "name", "card0", "netns", name)
                run("ip", "-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
                run("ip", "-n", name, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "card0")
                run("ip", "-n", name, "link", "set", "card0", "up")
            # 2.5 MB/s for one of them: less than a busy machine's other cards have.
            run("tc", "-n", names[1], "qdisc", "add", "dev", "card0", "root", "tbf", "rate", "20mbit", "burst", "64kb",
                "latency", "400ms")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', '') or error}")
        yield names
    finally:
        for name in (switch, *names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
