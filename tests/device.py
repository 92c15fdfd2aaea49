"""Where the tests train."""

import functools
import os
import subprocess

import pytest

# cpu: the processor, also where there is a GPU. cuda: GPUs (tests/gpu/first_run.py). simulated: simulated GPUs, of a copy of
# the program that the build keeps beside them (`make test-device`).
DEVICE = os.environ.get("LONGSPAN_TEST_DEVICE", "cpu")
MOST_RANKS = 4

# What runs on simulated GPUs: files that train, and what in them cannot be there, with the reason.
ON_SIMULATED_GPUS = (
    "end_to_end/test_expert_parallel.py", "end_to_end/test_families_on_gpus.py", "end_to_end/test_memory.py",
    "end_to_end/test_numbers.py", "end_to_end/test_parallel_training.py", "end_to_end/test_resume.py",
    "end_to_end/test_rows.py", "end_to_end/test_save_async.py", "end_to_end/test_saving.py",
    "end_to_end/test_sharded_resume.py", "end_to_end/test_sharding.py", "end_to_end/test_simulated_gpus.py",
    "end_to_end/test_stages.py", "parity/test_picture_training.py", "parity/test_preferences.py",
    "parity/test_trainer.py",
)
CHUNKS = ("a GPU's chunks (spec/device_sizes.h: 64 MiB of projections) hold this small model's whole row of 32k, so that what "
          "lives in a chunk grows with the row")
NOT_ON_SIMULATED_GPUS = {
    "test_memory.py::test_a_row_of_32k_takes_a_fifth": CHUNKS,
    "test_memory.py::test_a_shared_row_of_32k_takes_a_fifth": CHUNKS,
    "test_memory.py::test_memory_grows_in_a_straight_line[one process]": CHUNKS,
    "test_memory.py::test_memory_grows_in_a_straight_line[two processes]":
        "a GPU's head takes all of a rank's 4096 rows of the shortest row at once, and is its peak; that of the "
        "others is in the projections",
    "test_sharding.py::test_a_full_disk_on_one_rank":
        "its disk is full by a limit on the sizes of files, and the memory of simulated GPUs is a file",
}


# Of the account of a GPU: what its gemms work in (spec/device_sizes.h), which simulated GPUs do not have.
WORKSPACE = 64 << 20


def accounted(memory):
    """Bytes on the device by the account in memory.json, of what there is on this device."""
    return memory["device"] - (WORKSPACE if DEVICE == "simulated" else 0)


@functools.cache
def num_gpus():
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")


def device_keys():
    """Of the configuration."""
    if DEVICE == "simulated":
        return {"device": "cuda"}
    if DEVICE != "cuda":
        return {"device": DEVICE}
    return {"device": DEVICE, "share_gpus": num_gpus() < MOST_RANKS, "full_determinism": True}


def keys_for(num_ranks):
    """Of the configuration of a run of so many ranks, over device_keys(): with as many GPUs as that, NCCL connects them."""
    return {"share_gpus": num_gpus() < num_ranks} if DEVICE == "cuda" else {}


def hosts_wait():
    """Do ranks that exchange something wait for each other on their hosts? NCCL's do not."""
    return DEVICE == "cpu" or device_keys().get("share_gpus", False)


def simulated_environment(build):
    """In which the copy of the program finds its GPUs: one, unless gpus_for() says otherwise."""
    return {"LD_LIBRARY_PATH": f"{build / 'simulated_gpus'}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


def gpus_for(num_ranks):
    """Variables of so many processes of a run. Simulated GPUs are as many as they are: a run that nobody has launched
    starts a process on each."""
    return {"SIMULATED_DEVICES": str(num_ranks)}


def simulated_program(build):
    return build / "simulated_gpus" / "longspan"


def program_of(build):
    """The program that the tests run. What they start inherits where its GPUs are."""
    if DEVICE != "simulated":
        return build / "longspan"
    os.environ.update(simulated_environment(build))
    return simulated_program(build)


def choose(config, items):
    """Of the tests those that are for the device."""
    if DEVICE != "simulated":
        return
    others = [item for item in items if not item.path.as_posix().endswith(ON_SIMULATED_GPUS)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]
    for item in items:
        for name, reason in NOT_ON_SIMULATED_GPUS.items():
            if item.nodeid.split("/")[-1].startswith(name):
                item.add_marker(pytest.mark.skip(reason=reason))
