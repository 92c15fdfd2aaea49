"""What a fault works with, and what it leaves for the judgement of the end."""

import dataclasses
import time
from collections.abc import Callable

from chaos.live import Live


@dataclasses.dataclass
class Scene:
    """What a fault works with."""

    live: Live
    world: object
    rng: object
    kind: object
    ddp_timeout: int
    start_second: Callable  # (changes, machine) -> Live: the same configuration once more
    struck_at: float = 0.0  # monotonic: from here on the end is timed
    spared: set = dataclasses.field(default_factory=set)  # processes that are not waited for with the others
    stopped: set = dataclasses.field(default_factory=set)  # those of them that are stopped for good
    notes: list = dataclasses.field(default_factory=list)
    wrong: str = ""  # what the fault itself saw and must not be
    missed: bool = False  # nothing was there any more
    ends: frozenset = frozenset()  # that are promised too, as it was struck
    excuses: Callable = lambda end, text: False  # the end and what was said: nobody could have done better

    def now(self):
        self.struck_at = time.monotonic()

    def wait(self, seconds):
        """Sleeps, but not longer than the run lives."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.live.is_over(self.spared):
            time.sleep(0.02)

    def pick(self, what, pids):
        if not pids:
            self.notes.append(f"no {what} was there; all processes instead")
            return self.live.processes()
        return [self.rng.choice(pids)]


__all__ = ["Scene"]
