"""How far two runs of the same training may be apart that round differently: other kernels, other orders of summation.

One pass. A number of the small models here is carried through some fifty operations, forward and backward, each of
which rounds to fp32: relative to its norm a loss or a gradient is apart by some tens of roundings, taken as PASS of them.

A step. AdamW moves a weight by learning_rate * m / (sqrt(v) + adam_epsilon), whose slope in the gradient is at most
learning_rate / adam_epsilon. With the usual adam_epsilon of 1e-8 that is no bound at all: where a gradient is within its
own rounding of zero the update is learning_rate times an arbitrary sign, and such weights (biases of keys, rows of the
embedding that are hardly used) drive two runs apart by the size of learning_rate, however exact either of them is. So
tests train with ADAM_EPSILON, which is about the size of a clipped gradient's elements. The update is then near to
learning_rate / adam_epsilon times the gradient; this also shows a gradient that is too large by a factor (of P, say),
which AdamW otherwise divides out.

Steps. A difference d of the weights makes gradients differ by curvature * d and comes back multiplied by
1 + learning_rate / adam_epsilon * curvature. Gradients are clipped to norm 1, by which their curvature is divided too;
for these models it then is about 0.5, and taken as CURVATURE. After some steps the PASS roundings of each have grown by
exp(CURVATURE * steps * learning_rate / adam_epsilon).

Where that exponent is at most 1, all of it is 64 * 2^-24 * e = 1.04e-5, of which TOLERANCE is the round 1e-5. It holds on
any processor, and a test that trains further gets what its settings make of the formula.
"""

import json
import math

ROUNDING = 2.0**-24
PASS = 64
CURVATURE = 1.0
ADAM_EPSILON = 1e-2
TOLERANCE = min(PASS * ROUNDING * math.e, 1e-5)


def of_training(steps, learning_rate, adam_epsilon=ADAM_EPSILON):
    """Relative, of losses and gradient norms."""
    exponent = CURVATURE * steps * learning_rate / adam_epsilon
    assert exponent <= 3, "this training makes roundings grow by more than 20: lower learning_rate, or raise adam_epsilon"
    return PASS * ROUNDING * math.exp(max(exponent, 1.0))


def of_run(run):
    """Of a run by its own settings."""
    settings = json.loads((run.output_dir.parent / (run.output_dir.name + ".yaml")).read_text())
    return of_training(len(run.logged("loss")), settings["learning_rate"], settings["adam_epsilon"])


def of_log_ratio(logps):
    """Absolute, of the difference of two documents' log-probabilities (policy and reference, chosen and rejected),
    which may be small where each is in the hundreds: each is apart by 8 roundings of its size."""
    return 2 * 8 * ROUNDING * max(abs(number) for number in logps)
