"""Attention's rate beside ATen's and beside the best fp32 gemm's, under each instruction set that this processor has:
build/bench_attention with Longspan, ATen, MKL and oneDNN held to it. README.md in this folder says how."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.instructions import INSTRUCTIONS, missing, processor

PROGRAM = Path(__file__).resolve().parent.parent / "build/bench_attention"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", nargs="*", choices=INSTRUCTIONS, default=list(INSTRUCTIONS))
    parser.add_argument("--threads", type=int, default=1,
                        help="1 (the default) is timed by processor time, so that other programs disturb it little")
    parser.add_argument("--tokens", type=int, nargs="*", default=[2048, 8192])
    options = parser.parse_args()
    if not PROGRAM.exists():
        parser.error(f"{PROGRAM} is not there: run `make bench-programs`")
    print(processor()[0])
    for name in options.instructions:
        print(f"\n== {name}", flush=True)
        if lacks := missing(name):
            print(f"left out: this processor lacks {lacks}")
            continue
        subprocess.run([PROGRAM, str(options.threads), *map(str, options.tokens)], check=True,
                       env=os.environ | INSTRUCTIONS[name][1])


if __name__ == "__main__":
    main()
