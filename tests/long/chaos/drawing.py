"""Cases from a seed: which run, which faults, when. The same seed and number give the same case."""

import dataclasses
import random

from chaos import faults, runs


@dataclasses.dataclass(frozen=True)
class Planned:
    fault: str
    moment: str


@dataclasses.dataclass(frozen=True)
class Case:
    seed: int
    number: int
    kind: runs.Kind
    planned: tuple
    only_fault: str = ""

    def rng(self):
        """For what is drawn while it runs."""
        return random.Random(f"{self.seed}/{self.number}/run")

    @property
    def num_machines(self):
        return max([self.kind.num_machines] + [faults.BY_NAME[planned.fault].num_machines for planned in self.planned])

    def replay(self, ddp_timeout):
        only = f' --fault "{self.only_fault}"' if self.only_fault else ""
        return f"make chaos CHAOS='--seed {self.seed} --case {self.number} --ddp-timeout {ddp_timeout}{only}'"


def draw_case(seed, number, only_fault=""):
    """Its first fault comes from a deck, so that each kind comes as often as any other; in half of the cases one or two more follow,
    each in a start of its own. only_fault: its one fault."""
    rng = random.Random(f"{seed}/{number}")
    deck = list(faults.FAULTS)
    random.Random(f"{seed}/deck/{number // len(deck)}").shuffle(deck)
    first = faults.BY_NAME[only_fault] if only_fault else deck[number % len(deck)]
    kind = runs.draw_kind(rng, first.suits)
    chosen = [first]
    if not only_fault:
        suitable = [fault for fault in faults.FAULTS if fault.suits(kind)]
        chosen += [rng.choice(suitable) for _ in range(rng.choice([0, 0, 1, 2]))]
    return Case(seed, number, kind, tuple(Planned(fault.name, rng.choice(fault.moments)) for fault in chosen), only_fault)
