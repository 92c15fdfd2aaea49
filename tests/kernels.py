"""The numerically sensitive tests under every kernel that computes them on some processor: `make test-kernels`.

Which kernels run is a matter of the processor: ATen, MKL and oneDNN choose theirs, Longspan its own loops, and whether MKL
or oneDNN computes its fp32 gemms. Variables make each of them choose as another processor would. What this one cannot
run is skipped by name. `--short` is what `make test` runs: unit tests and three trainings under three of them, as many of
these six at a time as there are cores."""

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
    "own loops AVX2": (AVX2, dict(LONGSPAN_CPU_CAPABILITY="avx2")),
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
UNIT_TESTS = ["tiled MLP: as untiled*", "checkpointed block: chunks*", "gemm and add_gemm_*", "fused rows*",
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
SHORT_KERNELS = ["own loops AVX2", "gemms by MKL", "all narrow"]
SHORT_PYTHON_TESTS = ["tests/end_to_end/test_stages.py::test_ranks[3-zigzag-ring-rm]",
                      "tests/parity/test_trainer.py::test_losses_norms_and_weights[llama-2-optimizer1]",
                      "tests/parity/test_preferences.py::test_dpo[sigmoid]"]


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


def assert_tests_exist():
    """doctest is content with a pattern that no case matches: one that was renamed would be left out unseen."""
    for pattern in UNIT_TESTS:
        listed = subprocess.run([BUILD / "unit_tests", "-ltc", f"-tc={pattern}"], text=True, capture_output=True, check=True)
        assert "test cases passing the current filters: 0" not in listed.stdout, f"no unit test is called {pattern}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="what `make test` runs")
    parser.add_argument("--only", nargs="*", choices=KERNELS, default=list(KERNELS), help="these kernels")
    parser.add_argument("--unit", action="store_true", help="unit tests only")
    arguments = parser.parse_args()
    assert_tests_exist()
    has, failed = processor_has(), []
    parts = [("unit tests", [BUILD / "unit_tests", f"-tc={','.join(UNIT_TESTS)}"])]
    if not arguments.unit:
        tests = SHORT_PYTHON_TESTS if arguments.short else PYTHON_TESTS
        parts += [("training", [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-n",
                                0 if arguments.short else 2, *tests])]
    # All of pytest's own workers are at work in the long form.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() if arguments.short else 1) as cores:
        started = []
        for name in arguments.only:
            if arguments.short and name not in SHORT_KERNELS:
                continue
            needs, variables = KERNELS[name]
            if not needs <= has:
                print(f"   {name}: skipped, this processor lacks {', '.join(sorted(needs - has))}", flush=True)
                continue
            environment = dict(HF_HUB_OFFLINE="1", LONGSPAN_BUILD=str(BUILD)) | variables
            started += [(name, variables, what, cores.submit(run, command, environment)) for what, command in parts]
        for name, variables, what, part in started:
            good, seconds = part.result()
            said = " ".join(f"{key}={value}" for key, value in variables.items())
            print(f"   {name} ({said or 'no variables'}): {what} {'passed' if good else 'FAILED'}, {seconds:.0f} s", flush=True)
            failed += [] if good or name in failed else [name]
    print(f"   kernels under which tests failed: {', '.join(failed)}" if failed else "   all kernels passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
