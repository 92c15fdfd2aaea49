"""Memory that NCCL takes by itself, of null GPUs."""

import re

from test_null_cuda import WAYS, pytestmark, start, train  # noqa: F401


def test_free_memory_is_measured_once_nccl_has_taken_its_own(train):  # noqa: F811
    """With its first messages, a communicator takes memory, which kept layers must not count on."""
    free = []
    for taken in (8, 16):
        ended, _ = train(2, dict(NULL_NCCL_MEMORY=str(taken << 10)), max_steps=1, **WAYS["heads"])
        free.append(float(re.search(r"Gate and up are kept of .* of ([\d.]+) GiB, by the account", ended.text)[1]))
    # A rank may use nine tenths of the free memory; each number is rounded to 0.1.
    assert free[0] - free[1] >= 0.9 * 8 - 0.1, free
