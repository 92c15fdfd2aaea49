"""The widest vector instructions that the processor has are those that run, and the environment may ask for less."""

import os
import pathlib
import re
import subprocess

from conftest import BUILD, PROGRAM

VARIABLE = "LONGSPAN_CPU_CAPABILITY"
NAMES = ("portable", "avx2", "avx512")


def widest():
    flags = set()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":")[1].split())
    if not {"avx2", "fma"} <= flags:
        return "portable"
    return "avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "avx2"


def said(capability, *words):
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if capability is not None:
        environment[VARIABLE] = capability
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60, env=environment)


def test_env_says_which_loops_run():
    def lines(capability):
        text = said(capability, "env").stdout
        return [re.search(rf"^{name} +(.*)$", text, re.M)[1] for name in ("attention tiles", "vector math", "fp32 products")]

    *loops, products = lines(None)
    assert loops == [widest(), widest()]
    assert products in ("oneDNN", "MKL", "torch's")
    for name in NAMES[: NAMES.index(widest())]:
        *loops, products = lines(name)
        assert loops == [f"{name} ({VARIABLE}; the processor runs {widest()})"] * 2
        assert products != "oneDNN"


def test_a_value_that_cannot_be_is_said_before_anything_else(tmp_path):
    ran = said("avx1024", "train", str(tmp_path / "missing.yaml"))
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.startswith(f"error: environment variable {VARIABLE}=avx1024: choose portable, avx2 or avx512")
    assert ran.stderr.count("\n") == 1
    assert said("avx1024", "help").returncode == 0


def test_the_loops_are_made_of_wide_instructions():
    """Each set uses its own registers, and none wider: a processor without them would stop there."""
    machine_code = {}
    for name in NAMES:
        compiled = BUILD / f"CMakeFiles/longspan_core.dir/longspan/cpu/vector_kernels_{name}.cpp.o"
        machine_code[name] = subprocess.run(["objdump", "-d", compiled], text=True, capture_output=True).stdout
    if os.uname().machine != "x86_64":
        return
    found = {name: {register for register in ("xmm", "ymm", "zmm") if f"%{register}" in code} for name, code in machine_code.items()}
    assert found == {"portable": {"xmm"}, "avx2": {"xmm", "ymm"}, "avx512": {"xmm", "ymm", "zmm"}}
    for name, register in (("avx2", "ymm"), ("avx512", "zmm")):
        for loop in ("sum_exp", "scaled_exp", "max", "swiglu", "swiglu_backward", "norm_gradient", "precise_sum_of_squares"):
            body = re.search(rf"<\w+?\d{loop}_loop\w*>:\n(.*?)\n\n", machine_code[name] + "\n\n", re.S)[1]
            assert f"%{register}" in body, (name, loop)
