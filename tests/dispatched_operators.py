"""The operators of ATen that the tests on simulated GPUs dispatch there, also inside of others' and in the formulas of
autograd: a list, dispatched_operators.txt, of what a run of the tests has recorded (SIMULATED_OPERATORS).

    dispatched_operators.py check RECORD    whether all of it is in the list
    dispatched_operators.py write RECORD    makes the list of it"""

import pathlib
import re
import sys

import torch

LIST = pathlib.Path(__file__).parent / "dispatched_operators.txt"
VERSION = ".".join(torch.__version__.split(".")[:2])
HEAD = """\
# The operators of ATen that the tests on simulated GPUs dispatch there: `make operators` records them and writes this file.
# By torch {version}.
"""


def names_in(path):
    return {line for line in path.read_text().splitlines() if line and not line.startswith("#")}


def listed():
    return names_in(LIST)


def is_by_this_torch():
    """Another version composes its operators of others."""
    return re.search(r"^# By torch (.*)\.$", LIST.read_text(), re.MULTILINE)[1] == VERSION


def not_listed(record):
    """Names in the record, a file, that the list lacks, where both are by the same torch."""
    return names_in(record) - listed() if is_by_this_torch() else set()


def main(task, record):
    if task == "write":
        LIST.write_text(HEAD.format(version=VERSION) + "".join(f"{name}\n" for name in sorted(names_in(record))))
    elif missing := not_listed(record):
        sys.exit(f"{LIST} lacks what the tests have dispatched: {', '.join(sorted(missing))}. `make operators` writes it anew.")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
