"""Where the tests train."""

import functools
import os
import subprocess

# The processor, also where there is a GPU, unless the tests are to run there (tests/gpu/first_run.py).
DEVICE = os.environ.get("LONGSPAN_TEST_DEVICE", "cpu")
MOST_RANKS = 4


@functools.cache
def num_gpus():
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")


def device_keys():
    """Of the configuration."""
    if DEVICE != "cuda":
        return {"device": DEVICE}
    return {"device": DEVICE, "share_gpus": num_gpus() < MOST_RANKS, "full_determinism": True}
