"""Instruction sets that everything which computes on a processor can be held to: Longspan, ATen, MKL and oneDNN."""

from pathlib import Path

AVX2 = {"avx2", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
# name: (what the processor must have, variables). Each library has one of its own.
INSTRUCTIONS = {
    "avx2": (AVX2, dict(LONGSPAN_CPU_CAPABILITY="avx2", ATEN_CPU_CAPABILITY="avx2", MKL_ENABLE_INSTRUCTIONS="AVX2",
                        ONEDNN_MAX_CPU_ISA="AVX2")),
    "avx512": (AVX512, dict(LONGSPAN_CPU_CAPABILITY="avx512", ATEN_CPU_CAPABILITY="avx512",
                            MKL_ENABLE_INSTRUCTIONS="AVX512", ONEDNN_MAX_CPU_ISA="AVX512_CORE")),
}


def processor() -> tuple[str, set[str]]:
    """Its name and its features."""
    known = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        known.setdefault(name.strip(), value.strip())
    return known.get("model name", "unknown"), set(known.get("flags", "").split())


def missing(name: str) -> str:
    """The features of an instruction set that this processor lacks, with commas."""
    return ", ".join(sorted(INSTRUCTIONS[name][0] - processor()[1]))
