"""The widest vector instructions that the processor has are those that run, and the environment may ask for less."""

import os
import pathlib
import re
import subprocess

from conftest import PROGRAM

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
        return [re.search(rf"^{name} +(.*)$", text, re.M)[1] for name in ("attention tiles", "vector math", "fp32 gemms")]

    *loops, products = lines(None)
    assert loops == [widest(), widest()]
    assert products in ("oneDNN", "MKL", "torch's", "own AVX2 tiles")
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


def machine_code_of_loops():
    """Of each set its functions, as objdump writes them: read out of the linked program, whose table of symbols has the
    functions of a source file behind the file's name."""
    table = subprocess.run(["readelf", "-sW", PROGRAM], text=True, capture_output=True, check=True).stdout
    places, source = {name: {} for name in NAMES}, ""
    for line in table.splitlines():
        words = line.split()
        if len(words) < 8 or words[4] != "LOCAL":
            continue
        if words[3] == "FILE":
            source = words[7]
        set_of_loops = re.fullmatch(r"vector_kernels_(\w+)\.cpp", source)
        if words[3] == "FUNC" and set_of_loops:
            places[set_of_loops[1]][words[7]] = int(words[1], 16), int(words[2], 0)
    machine_code = {}
    for name, functions in places.items():
        assert functions, f"{PROGRAM} has no symbols of the {name} loops: is it stripped?"
        begin = min(begin for begin, _ in functions.values())
        end = max(begin + size for begin, size in functions.values())
        text = subprocess.run(["objdump", "-d", f"--start-address={begin}", f"--stop-address={end}", PROGRAM], text=True,
                              capture_output=True, check=True).stdout
        machine_code[name] = {function: body for function, body in re.findall(r"<([^<>]+)>:\n(.*?)(?=\n\n|\Z)", text, re.S)
                              if function in functions}
        assert machine_code[name].keys() == functions.keys()
    return machine_code


def test_the_loops_are_made_of_wide_instructions():
    """Each set uses its own registers, and none wider: a processor without them would stop there."""
    if os.uname().machine != "x86_64":
        return  # one set of loops
    machine_code = machine_code_of_loops()
    found = {name: {register for register in ("xmm", "ymm", "zmm") for body in functions.values() if f"%{register}" in body}
             for name, functions in machine_code.items()}
    assert found == {"portable": {"xmm"}, "avx2": {"xmm", "ymm"}, "avx512": {"xmm", "ymm", "zmm"}}
    for name, register in (("avx2", "ymm"), ("avx512", "zmm")):
        for loop in ("sum_exp", "scaled_exp", "max", "swiglu", "swiglu_backward", "norm_gradient", "precise_sum_of_squares"):
            (body,) = [body for function, body in machine_code[name].items() if re.search(rf"\d{loop}_loop", function)]
            assert f"%{register}" in body, (name, loop)
