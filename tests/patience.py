"""A clock for what a test waits for: where more want to compute than there are cores, it goes slower by as much. So a deadline
is one of the work that is waited for, whatever else the machine does."""

import functools
import os
import pathlib
import subprocess
import threading
import time


class Clock(threading.Thread):
    """Samples a few times a second how many threads of the machine want to compute."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seconds, self.sampled = 0.0, time.monotonic()
        self.lock = threading.Lock()

    def sample(self):
        with self.lock:
            now = time.monotonic()
            want = int(pathlib.Path("/proc/loadavg").read_text().split()[3].split("/")[0])
            self.seconds += (now - self.sampled) * min(1.0, os.cpu_count() / max(1, want))
            self.sampled = now
            return self.seconds

    def run(self):
        while True:
            self.sample()
            time.sleep(0.2)


@functools.cache
def clock():
    made = Clock()
    made.start()
    return made


def patient_time():
    """Seconds, of no meaning but their differences."""
    return clock().sample()


def let_pass(seconds):
    """Waits: what runs beside gets as much to compute as in so many seconds of a quiet machine."""
    end = patient_time() + seconds
    while patient_time() < end:
        time.sleep(0.05)


def wait_patiently(process, seconds):
    """The process's status; it has to end by then."""
    end = patient_time() + seconds
    while True:
        try:
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            assert patient_time() < end, f"process {process.pid} has not ended in {seconds} s"
