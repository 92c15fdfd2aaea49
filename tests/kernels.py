"""The numerically sensitive tests under every kernel that computes them on some processor: `make test-kernels`.

Which kernels run is a matter of the processor: ATen, MKL and oneDNN choose theirs, Longspan its own loops, and whether MKL,
oneDNN or tiles of its own compute fp32 gemms. Variables make each of them choose as another processor would. What this one cannot
run is skipped by name. `--short` is what `make test` runs: unit tests and three trainings under two of them."""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LONGSPAN_BUILD", ROOT / "build"))

AVX2 = {"avx2", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
# name: (what the processor must have, variables)
KERNELS = {
    "as chosen": (set(), {}),
    "ATen default": (set(), dict(ATEN_CPU_CAPABILITY="default")),
    "ATen AVX2": (AVX2, dict(ATEN_CPU_CAPABILITY="avx2")),
    "ATen AVX-512": (AVX512, dict(ATEN_CPU_CAPABILITY="avx512")),
    "own loops portable": (set(), dict(LONGSPAN_CPU_CAPABILITY="portable")),
    "own loops and gemms AVX2": (AVX2, dict(LONGSPAN_CPU_CAPABILITY="avx2", LONGSPAN_GEMM="tiles")),
    "own loops AVX-512": (AVX512, dict(LONGSPAN_CPU_CAPABILITY="avx512")),
    "gemms by MKL": (set(), dict(LONGSPAN_GEMM="mkl")),
    "gemms by MKL, compatible": (set(), dict(LONGSPAN_GEMM="mkl", MKL_CBWR="COMPATIBLE")),
    "gemms by MKL, AVX2": (AVX2, dict(LONGSPAN_GEMM="mkl", MKL_CBWR="AVX2")),
    "gemms by oneDNN": (AVX512, dict(LONGSPAN_GEMM="onednn")),
    "gemms by oneDNN, AVX-512 core": (AVX512, dict(LONGSPAN_GEMM="onednn", ONEDNN_MAX_CPU_ISA="AVX512_CORE")),
    "oneDNN at most AVX2": (AVX2, dict(ONEDNN_MAX_CPU_ISA="AVX2")),
    "all AVX2": (AVX2, dict(ATEN_CPU_CAPABILITY="avx2", LONGSPAN_CPU_CAPABILITY="avx2", MKL_CBWR="AVX2",
                            ONEDNN_MAX_CPU_ISA="AVX2")),
    "all narrow": (set(), dict(ATEN_CPU_CAPABILITY="default", LONGSPAN_CPU_CAPABILITY="portable", LONGSPAN_GEMM="mkl",
                               MKL_CBWR="COMPATIBLE", ONEDNN_MAX_CPU_ISA="SSE41")),
}
UNIT_TESTS = ["tiled MLP: as untiled*", "checkpointed block: chunks*", "gemm and add_gemm_*", "tiled gemms*", "fused rows*",
              "gated MLP*", "self-attention*", "vector math*", "flash*", "large scores*"]
PYTHON_TESTS = [
    "tests/end_to_end/test_stages.py::test_ranks",
    "tests/end_to_end/test_parallel_training.py::test_same_losses",
    "tests/end_to_end/test_sharding.py::test_every_layout[everything]",
    "tests/end_to_end/test_sharding.py::test_bf16",
    "tests/end_to_end/test_memory.py::test_tiled_mlp_is_the_untiled_one",
    "tests/parity/test_models.py::test_logits_loss_and_gradients",
    "tests/parity/test_trainer.py::test_losses_norms_and_weights",
    "tests/parity/test_lora.py::test_sft",
    "tests/parity/test_lora.py::test_dpo",
    "tests/parity/test_preferences.py",
]
# MKL's gemms are in the second, with narrow loops; MKL beside wide loops is in `make test-kernels`.
SHORT_KERNELS = ["own loops and gemms AVX2", "all narrow"]
SHORT_PYTHON_TESTS = ["tests/end_to_end/test_stages.py::test_ranks[3-zigzag-ring-rm]",
                      "tests/parity/test_trainer.py::test_losses_norms_and_weights[llama-2-optimizer1]",
                      "tests/parity/test_preferences.py::test_dpo[sigmoid]"]

ENVIRONMENT = dict(HF_HUB_OFFLINE="1", LONGSPAN_BUILD=str(BUILD), LONGSPAN_ALL_CASES="1")
UNIT_COMMAND = [BUILD / "unit_tests", f"-tc={','.join(UNIT_TESTS)}"]


def processor_has():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()


def run(command, environment):
    """Did it succeed, and in how many seconds?"""
    start = time.monotonic()
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env=dict(os.environ) | environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode == 0, time.monotonic() - start


def train_here(names, tests):
    """pytest in this process, once for each of these kernels: transformers and TRL are loaded once. What they compute
    themselves is by the kernels that this process has chosen."""
    import pytest

    before, failed = dict(os.environ), []
    for name in names:
        os.environ.clear()
        os.environ.update(before | KERNELS[name][1])
        start = time.monotonic()
        good = pytest.main(["-q", "--tb=short", "-p", "no:cacheprovider", *tests]) == 0
        sys.modules["thread_ranks"].trainings.end()  # started with this kernel's variables
        print(f"   {described(name)}: training {'passed' if good else 'FAILED'}, {time.monotonic() - start:.0f} s", flush=True)
        failed += [] if good else [name]
    return failed


def described(name):
    variables = KERNELS[name][1]
    return f"{name} ({' '.join(f'{key}={value}' for key, value in variables.items()) or 'no variables'})"


def assert_tests_exist():
    """doctest is content with a pattern that no case matches: one that was renamed would be left out unseen."""
    for pattern in UNIT_TESTS:
        listed = subprocess.run([BUILD / "unit_tests", "-ltc", f"-tc={pattern}"], text=True, capture_output=True, check=True)
        assert "test cases passing the current filters: 0" not in listed.stdout, f"no unit test is called {pattern}"


def short():
    """Unit tests of the short kernels, and beside them one process that trains under each."""
    has = processor_has()
    names = [name for name in SHORT_KERNELS if says_that_it_runs(name, has)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as cores:
        training = cores.submit(run, [sys.executable, __file__, "--train-here", *names], ENVIRONMENT)
        units = {name: cores.submit(run, UNIT_COMMAND, ENVIRONMENT | KERNELS[name][1]) for name in names}
        failed = [name for name, part in units.items() if not told(name, "unit tests", *part.result())]
        good, seconds = training.result()
    print(f"   training under each: {'passed' if good else 'FAILED'}, {seconds:.0f} s", flush=True)
    return failed + ([] if good else ["those that are named above"])


def whole(names, only_units):
    parts = [("unit tests", UNIT_COMMAND)]
    if not only_units:
        parts += [("training", [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-n", 2,
                                *PYTHON_TESTS])]
    has = processor_has()
    failed = []
    for name in (name for name in names if says_that_it_runs(name, has)):
        outcomes = [told(name, what, *run(command, ENVIRONMENT | KERNELS[name][1])) for what, command in parts]
        failed += [] if all(outcomes) else [name]
    return failed


def says_that_it_runs(name, has):
    needs = KERNELS[name][0]
    if not needs <= has:
        print(f"   {name}: skipped, this processor lacks {', '.join(sorted(needs - has))}", flush=True)
    return needs <= has


def told(name, what, good, seconds):
    print(f"   {described(name)}: {what} {'passed' if good else 'FAILED'}, {seconds:.0f} s", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="what `make test` runs")
    parser.add_argument("--only", nargs="*", choices=KERNELS, default=list(KERNELS), help="these kernels")
    parser.add_argument("--unit", action="store_true", help="unit tests only")
    parser.add_argument("--train-here", nargs="*", choices=KERNELS, help="only the short trainings, under these kernels")
    arguments = parser.parse_args()
    if arguments.train_here is not None:
        return 1 if train_here(arguments.train_here, SHORT_PYTHON_TESTS) else 0
    assert_tests_exist()
    failed = short() if arguments.short else whole(arguments.only, arguments.unit)
    print(f"   kernels under which tests failed: {', '.join(failed)}" if failed else "   all kernels passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
