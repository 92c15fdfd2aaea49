"""The key `device` on a machine with GPUs, as far as that can be shown without one: the program is told of two by a CUDA
half that only counts them."""

import json
import os
import shutil
import subprocess

import pytest
from conftest import PROGRAM, Running, settings_of

CUDA_HALF = """
#include <stdlib.h>
static int count() { return getenv("GPUS") ? atoi(getenv("GPUS")) : 2; }
static void set(int number) {}
static const char* trouble() { return "the driver is too old"; }
static const struct {
  int (*num_devices)(); void (*set_device)(int); void* make_backend; const char* (*trouble)(); void* current_stream;
  signed char type; const char* name; void* block_kernel;
} entry = {count, set, 0, trouble, 0, 1, "CUDA", 0};
const void* longspan_cuda_entry(void) { return &entry; }
"""


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory):
    """A copy of the program that sees two GPUs, and the environment in which it does."""
    folder = tmp_path_factory.mktemp("gpus")
    program = folder / "longspan"
    shutil.copy(PROGRAM, program)
    for text, name in ((CUDA_HALF, "liblongspan_cuda.so"), ("int longspan_driver;", "libcuda.so.1")):
        source = folder / "source.c"
        source.write_text(text)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / name, source], check=True)
    return program, {"LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


@pytest.fixture
def train_beside_gpus(two_gpus, models, data, tmp_path):
    """Runs with the keys as they are, without the tests' own device: cpu."""
    program, variables = two_gpus
    config = tmp_path / "config.yaml"

    def run(GPUS="2", **keys):
        settings = settings_of(models["qwen2"], data, tmp_path / "out", max_steps=1) | {"device": None} | keys
        config.write_text(json.dumps(settings))
        return subprocess.run(
            [program, "train", config], capture_output=True, text=True, timeout=60,
            env=dict(os.environ, OMP_NUM_THREADS="1", GPUS=GPUS) | variables)

    return run


def test_a_driver_that_torch_cannot_use_is_said_before_anything_is_read(train_beside_gpus, tmp_path):
    for device in (None, "auto", "cuda"):
        # The folder is not there: the device comes first.
        ran = train_beside_gpus(device=device, model_name_or_path=str(tmp_path / "nowhere"), GPUS="-1")
        assert ran.returncode == 1
        assert "CUDA cannot be used: the driver is too old" in ran.stderr and ran.stderr.count("error: ") == 1
        assert "device: cpu" in ran.stderr
    assert not (tmp_path / "out").exists()
    assert train_beside_gpus(device="cpu", GPUS="-1").returncode == 0


def test_cpu_beside_gpus(train_beside_gpus, tmp_path):
    ran = train_beside_gpus(device="cpu", nproc_per_node=3)
    assert ran.returncode == 0, ran.stderr
    assert "as device: cpu asks" in ran.stdout
    ran = train_beside_gpus(use_cpu=True, output_dir=str(tmp_path / "again"))
    assert ran.returncode == 0, ran.stderr


def test_processes_are_counted_against_gpus(train_beside_gpus, tmp_path):
    ran = train_beside_gpus(bf16=True, nproc_per_node=3)
    assert ran.returncode == 1 and "3 processes run on this machine, but they see 2 GPUs" in ran.stderr
    # Left out, there is a process for each GPU: 2, which 3 does not divide.
    ran = train_beside_gpus(bf16=True, sequence_parallel_size=3)
    assert ran.returncode == 1 and "sequence_parallel_size: 3 does not divide" in ran.stderr, ran.stderr
    assert not (tmp_path / "out").exists()


def test_launched_ranks_say_it(two_gpus, models, data, tmp_path):
    program, variables = two_gpus
    settings = settings_of(models["qwen2"], data, tmp_path / "out") | {"device": "auto"}
    ended = Running(settings, 2, program=program, GPUS="-1", **variables).wait()
    assert ended.statuses == [1, 1]
    for text in ended.texts:
        assert text.count("error: ") == 1 and "CUDA cannot be used: the driver is too old" in text, text


def test_cuda_without_a_gpu(models, data, tmp_path):
    settings = settings_of(models["qwen2"], data, tmp_path / "out") | {"device": "cuda", "bf16": True}
    ended = Running(settings, CUDA_VISIBLE_DEVICES="").wait()
    assert ended.status == 1
    assert "device: cuda was given, but CUDA cannot be used: " in ended.text and "Set device: cpu" in ended.text


def test_counting_gpus_starts_no_benchmark_ranks(two_gpus, tmp_path):
    """On a CPU the ranks of `longspan bench` are its own, whatever GPUs there are."""
    program, variables = two_gpus
    ran = subprocess.run(
        [program, "bench", "attention", "--device", "cpu", "--tokens", "64", "--repeats", "1", "--warmup", "0", "--methods", "ulysses",
         "--ranks", "3", "--heads", "3", "--kv-heads", "3", "--output", tmp_path / "bench"],
        capture_output=True, text=True, timeout=60, env=dict(os.environ, OMP_NUM_THREADS="1") | variables)
    assert ran.returncode == 0, ran.stderr


def test_a_sum_by_nccl_needs_nccl(train_beside_gpus):
    for keys, why in ((dict(device="cpu"), "as device: cpu asks"), (dict(share_gpus=True), "share_gpus: true")):
        ran = train_beside_gpus(reduce_scatter="nccl", **keys)
        assert ran.returncode == 1 and ran.stderr.count("error: ") == 1, ran.stderr
        assert "reduce_scatter: nccl needs GPUs" in ran.stderr and why in ran.stderr, ran.stderr
        assert "reduce_scatter: exchange" in ran.stderr, ran.stderr
