"""The script of the first run on GPUs does all it says, on simulated ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import BUILD
from device import gpus_for, simulated_environment, simulated_program

sys.path.insert(0, str(Path(__file__).parent.parent / "null_cuda"))
from null_gpus import null_environment, null_program, why_none  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ROOT / "tests/gpu"
sys.path.insert(0, str(SCRIPTS))
from launches import kind_of  # noqa: E402
from test_null_cuda import cache_of_kernels  # noqa: E402

# What the script asks of it: which GPUs there are, and MiB in use.
NVIDIA_SMI = """#!/bin/sh
case "$*" in
-L) for i in 0 1 2 3; do echo "GPU $i: simulated (UUID: none)"; done ;;
*memory.used*nounits*) echo 0 ;;
*) echo "name, driver_version" ;;
esac
"""


def write_program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def first_run(tmp_path):
    """first_run(*words): its exit status and its report. The programs that it finds are in `build` and `tools`."""
    build, tools = tmp_path / "build", tmp_path / "tools"
    write_program(tools / "nvidia-smi", NVIDIA_SMI)
    build.mkdir()
    (build / "longspan").symlink_to(simulated_program(BUILD))

    def run(*words, without="", **variables):
        report = tmp_path / "report.md"
        path = [folder for folder in os.environ["PATH"].split(":") if not (without and (Path(folder) / without).exists())]
        environment = os.environ | dict(PATH=":".join([str(tools), *path]), OMP_NUM_THREADS="1")
        environment |= variables or simulated_environment(BUILD) | gpus_for(2)
        command = [sys.executable, SCRIPTS / "first_run.py", "--build", build, "--report", report, "--work", tmp_path / "work", *words]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert report.exists(), ended.stdout + ended.stderr
        return ended.returncode, report.read_text()

    run.build, run.tools, run.work = build, tools, tmp_path / "work"
    return run


@pytest.mark.long
def test_parts_that_train(first_run):
    status, text = first_run("--parts", "env,zero,memory", "--zero", "3, all offloads", "--processes", "2",
                             "--memory", "tiny:256,tiny:256+2x64")
    assert status == 0, text
    assert "GPU 0" in text or "name, driver_version" in text
    assert "- passed: zero_stage 3, all offloads: losses of 5 steps beside one process" in text, text
    lines = (first_run.work / "memory-tiny-256+2x64" / "trainer_log.jsonl").read_text().splitlines()
    tokens = [line["total_tokens"] for line in map(json.loads, lines) if "loss" in line]
    assert tokens == [384, 2 * 384], "a row has all three documents"
    assert "| tiny | 256 | " in text and "| tiny | 256+2x64 | " in text and "- passed: no run takes more than its account" in text, text
    assert "- not run: nvidia-smi beside the account: nvidia-smi shows less" in text, text  # it shows 0
    assert text.endswith("\n0 failed\n"), text


@pytest.mark.long
@pytest.mark.skipif(bool(why_none()), reason=why_none())
def test_a_lost_rank_of_gpus(first_run, models, data, place):
    """Of four null GPUs, by NCCL: no host waits in a collective, and nothing but the heartbeat says that a rank is gone,
    also where the rank that serves the store is stopped, and answers nobody."""
    (first_run.build / "longspan").unlink()
    (first_run.build / "longspan").symlink_to(null_program(BUILD))
    status, text = first_run("--parts", "signals", "--select",
                             "test_a_killed_rank[2-4] or test_a_stopped_rank[0]", "--workers", "1",
                             **null_environment(BUILD, 4, XDG_CACHE_HOME=cache_of_kernels(models, data, place)))
    assert status == 0 and "test_a_stopped_rank: 2 passed" in text, text + (first_run.work / "signals.log").read_text()


GPU_TESTS = """#!/bin/sh
echo "TEST CASE:  groups of two"
echo
echo "groups_test.cpp:60: MESSAGE: not run: two GPUs are needed"
echo "[doctest] test cases: 1 | 1 passed | 0 failed | 0 skipped"
echo "[doctest] assertions: 9 | 9 passed | 0 failed |"
echo "[doctest] Status: SUCCESS!"
"""
# What compute-sanitizer writes behind the program's own lines, its exit status, and whether that passes. Where it has not
# seen the program it writes no sum.
SANITIZERS = {
    "nothing is wrong": ("========= ERROR SUMMARY: 0 errors", 0, "- passed: under compute-sanitizer: "),
    "wrong accesses": ("========= Invalid __global__ read\n========= ERROR SUMMARY: 2 errors", 86,
                       "- **FAILED**: under compute-sanitizer: it has found 2 errors"),
    "wrong accesses, and the program's own status": ("========= ERROR SUMMARY: 1 error", 0,
                                                     "- **FAILED**: under compute-sanitizer: it has found 1 errors"),
    "nothing is seen": ("", 0, "- **FAILED**: under compute-sanitizer: it has written no sum of errors"),
    "the program fails": ("========= ERROR SUMMARY: 0 errors", 1, "- **FAILED**: under compute-sanitizer: ended with 1"),
}


@pytest.mark.parametrize("case", SANITIZERS)
def test_what_a_sanitizer_finds(first_run, case):
    said, status, expected = SANITIZERS[case]
    write_program(first_run.build / "gpu_tests", GPU_TESTS)
    write_program(first_run.tools / "compute-sanitizer",
                  '#!/bin/sh\n[ "$1" = --tool ] || exit 3\nfor last; do :; done\n'
                  f'"$last" || exit\ncat <<END\n{said}\nEND\nexit {status}\n')
    ended, text = first_run("--parts", "kernels")
    assert "- passed: every launch waited for" in text and "9 passed" in text and expected in text, text
    passed = expected.startswith("- passed")
    assert ended == (0 if passed else 1) and text.count("FAILED") == (0 if passed else 1), text
    assert passed or said in text.replace("      ", ""), text  # what it has said, for who reads the report


def test_without_a_sanitizer(first_run):
    write_program(first_run.build / "gpu_tests", GPU_TESTS)
    status, text = first_run("--parts", "kernels", without="compute-sanitizer")
    assert status == 0 and "- not run: compute-sanitizer: it is not installed" in text, text
    assert "- not run: groups of two: two GPUs are needed" in text, text


# A training of four steps, in ms: what CUPTI's records say of it.
UPDATE = "_ZN2at6native25multi_tensor_apply_kernelINS0_18TensorListMetadata21FusedAdamMathFunctor"
RECORDS = [
    ("kernel", 0, 10, 7, 1, UPDATE),
    ("kernel", 20, 30, 7, 1, "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd"),
    ("kernel", 40, 50, 7, 1, UPDATE),
    ("kernel", 90, 100, 7, 1, UPDATE),
    ("copy", 95, 105, 8, 77, 1),  # begins in the step before
    # The last step, of 140 ms.
    ("kernel", 105, 125, 7, 1, "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90"),
    ("kernel", 125, 145, 7, 1, "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"),
    ("kernel", 135, 152, 9, 1, "ncclDevKernel_Broadcast_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ("copy", 140, 150, 8, 2_000_000, 2),
    ("copy", 145, 155, 10, 1_000_000, 2),
    ("memset", 155, 167, 7, 64, "-"),
    ("wait", 110, 112, 7, 0, 2),  # no host waits here
    ("wait", 150, 190, 7, 0, 3),
    ("wait", 191, 192, 7, 0, 1),
    ("kernel", 202, 222, 7, 1, "norm_backward_sums_fb_v4"),
    ("kernel", 222.005, 232, 7, 1, "_ZN2at6native29vectorized_elementwise_kernelILi4E"),
    ("copy", 230, 260, 8, 500_000, 1),  # ends behind the step
    ("kernel", 232, 240, 7, 1, UPDATE),
]
TABLES = """\
6 kernels, 3 copies, 1 memsets, 2 waits of the host in 0.140 s; the GPU is busy for 0.100 s
gaps in which the GPU does nothing: 3, 40.0 ms; of 10 us and longer: 2, 40.0 ms; the longest: 35.00 ms
copies: 25.0 ms, of which beside kernels: 22.0 ms (88%)
NCCL: 17.0 ms, of which beside kernels: 10.0 ms (59%)
the host waits for an event: 1 times, 1.0 ms
the host waits for a stream: 1 times, 40.0 ms
streams wait for events of others: 1 times
copies by kind (1 to device, 2 to host, 8 on the device): count, MB, ms: {'2': (2, 3.0, 20.0), '1': (1, 0.5, 10.0)}

| ms | share | launches | us each | what |
|---|---|---|---|---|
| 20.0 | 14.3% | 1 | 20000.0 | attention forward |
| 20.0 | 14.3% | 1 | 20000.0 | gemm |
| 20.0 | 14.3% | 1 | 20000.0 | rows (longspan/cuda/rows) |
| 17.0 | 12.1% | 1 | 17000.0 | NCCL |
| 10.0 | 7.1% | 1 | 9995.0 | elementwise |
| 8.0 | 5.7% | 1 | 8000.0 | optimizer |
"""


@pytest.fixture
def records(tmp_path):
    lines = ["\t".join(map(str, (what, round(1e6 * begin), round(1e6 * end), *rest))) for what, begin, end, *rest in RECORDS]
    file = tmp_path / "records.tsv"
    file.write_text("\n".join(lines) + "\nkernel\t260000000\t27")  # of the last one the end is not there
    return file


@pytest.mark.skipif(not list(Path(torch.__file__).parent.parent.glob("nvidia/**/include/cupti.h")), reason="there is no CUPTI")
def test_the_time_of_a_step(first_run, records):
    """Of a run of simulated GPUs, which has no records of its own: these are put where CUPTI would write."""
    (first_run.build / "longspan").unlink()
    write_program(first_run.build / "longspan", f"""#!/bin/sh
[ -z "$LAUNCHES" ] || [ ! -f "$CUDA_INJECTION64_PATH" ] || [ ! -f {records} ] || cp {records} "$LAUNCHES"
exec {simulated_program(BUILD)} "$@"
""")
    status, text = first_run("--parts", "profile", "--profile", "tiny:256")
    assert status == 0 and "- passed: the last of 4 steps, tiny, 256 tokens" in text and TABLES in text, text
    # None of an earlier run.
    records.unlink()
    status, text = first_run("--parts", "profile", "--profile", "tiny:256")
    assert status == 1 and "- **FAILED**: the last of 4 steps" in text and "has not loaded liblaunches.so" in text, text
    assert "Traceback" not in text, text


# Names as CUPTI records them: of torch, of cuDNN, and of longspan/cuda/rows.
KINDS = {
    "attention forward": ["cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"],
    "attention backward": ["cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_5_64x64x128_1x1x1_kernel0_0",
                           "_ZN5cudnn6fusion28compute_dot_do_o_specializedI13__nv_bfloat16EEvv",
                           "_ZN13pytorch_flash24flash_bwd_dot_do_o_kernelILb1E"],
    "optimizer": [UPDATE, "adamw_8bit_f_v4", "adamw_8bit_b_v1"],
    "recurrences": ["unit_heads_b", "unit_heads_backward_f", "delta_chunks_b", "delta_chunks_backward_b", "delta_scan_f",
                    "causal_conv_b_v8", "causal_conv_backward_f_v4"],
    "experts": ["group_tiles", "grouped_rows_b", "grouped_rows_transposed_f", "grouped_matrices", "grouped_dots",
                "grouped_sums", "cast_matrices", "combine_rows", "order_arrived"],
    "rows (longspan/cuda/rows)": ["norm_f_b_v4", "drop_out_b_v8", "unpack_groups_b_v8", "sum_weight_gradients"],
    "gemm": ["nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"],
    "copies and casts": ["_ZN2at6native24unrolled_copy_kernelE"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_kernels(kind):
    """By name, in the table of a step's time."""
    assert {name: kind_of(name) for name in KINDS[kind]} == dict.fromkeys(KINDS[kind], kind)


@pytest.mark.parametrize("update, steps, expected", [
    ("dam", 4, TABLES), ("dam", 3, "4 kernels of the optimizer are not of 3 steps (two or more)"),
    ("muon", 4, "0 kernels of the optimizer are not of 4 steps (two or more)")])
def test_steps_are_told_apart_by_their_updates(records, update, steps, expected):
    ended = subprocess.run([sys.executable, SCRIPTS / "launches.py", records, "--steps", str(steps), "--update", update],
                           capture_output=True, text=True, check=False)
    assert ended.stdout.startswith(expected) if expected == TABLES else ended.stderr == expected + "\n", ended
