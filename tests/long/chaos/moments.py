"""When a fault comes: at a moment of the run, and some random time later."""

import dataclasses
import time

from chaos.runs import EVAL_STEPS

BEFORE, LOADING, TRAINING, SAVING, EVALUATING, LEAVING, ANY = (
    "before the rendezvous", "loading", "training", "saving", "evaluating", "leaving", "any time")
AT_ONCE = "at once"
ALL = [BEFORE, LOADING, TRAINING, SAVING, EVALUATING, LEAVING, ANY]
FIRST_WORD, FIRST_LOSS, MODEL_SAVED = "Output ", "'loss'", "Saved the model"


@dataclasses.dataclass
class Timeline:
    """Seconds from the start of an undisturbed run to what can be seen of it."""

    workers: float = 0  # all are there
    first_word: float = 0
    first_loss: float = 0
    saved: float = 0
    end: float = 0

    def watch(self, live):
        """Writes down what is new."""
        now, text = time.monotonic() - live.began, live.text()
        if not self.workers and len(live.workers()) == live.kind.num_processes:
            self.workers = now
        for name, word in (("first_word", FIRST_WORD), ("first_loss", FIRST_LOSS), ("saved", MODEL_SAVED)):
            if not getattr(self, name) and word in text:
                setattr(self, name, now)


def wait_for(live, condition, patience):
    """Whether it came before the run ended."""
    end = time.monotonic() + patience
    while not condition():
        if live.is_over() or time.monotonic() > end:
            return False
        time.sleep(0.004)
    return True


def wait_for_moment(moment, live, timeline, rng, patience):
    """Sleeps until the moment is there. False where the run has ended before."""
    share, which = rng.random(), rng.randint(1, 3)  # as many draws whatever the moment
    if moment == AT_ONCE:
        return True
    if moment == BEFORE:
        delay = share * max(timeline.first_word * 0.6, 0.5)
    elif moment == LOADING:
        if not wait_for(live, lambda: len(live.workers()) == live.kind.num_processes, patience):
            return False
        delay = share * max(timeline.first_loss - timeline.workers, 0.1)
    elif moment == TRAINING:
        if not wait_for(live, lambda: live.says(FIRST_LOSS), patience):
            return False
        delay = share * max(timeline.saved - timeline.first_loss, 0.1)
    elif moment == SAVING:
        for count in range(which):
            if not wait_for(live, live.is_saving, patience):
                return False
            if count + 1 < which and not wait_for(live, lambda: not live.is_saving(), patience):
                return False
        delay = share * 0.05
    elif moment == EVALUATING:
        steps = EVAL_STEPS * (1 + which % 2)
        if not wait_for(live, lambda: live.text().count(FIRST_LOSS) >= steps, patience):
            return False
        delay = share * 0.1
    elif moment == LEAVING:
        if not wait_for(live, live.is_leaving, patience):
            return False
        delay = share * 0.4
    else:
        delay = share * max(timeline.end, 1)
    end = time.monotonic() + delay
    while time.monotonic() < end:
        if live.is_over():
            return False
        time.sleep(min(0.01, max(0.0, end - time.monotonic())))
    return not live.is_over()
