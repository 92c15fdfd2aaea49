#!python
"""The command `longspan` of an installed package: starts the program with the torch of this environment."""

import importlib.util
import os
import re
import sys


def folder_of(package):
    """The folder of a package, which is not imported; None: there is no such package."""
    spec = importlib.util.find_spec(package)
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def text_of(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def main():
    own, torch = folder_of("longspan"), folder_of("torch")
    wanted = ".".join(text_of(own, "_built_for_torch.txt").split(".")[:2])
    if torch is None:
        sys.exit(f"longspan: there is no torch in this environment ({sys.prefix}): pip install 'torch=={wanted}.*'")
    found = re.search(r"^__version__\b[^=\n]*=\s*['\"](\d+\.\d+)", text_of(torch, "version.py"), re.MULTILINE)
    if found is None or found[1] != wanted:
        sys.exit(
            f"longspan: built for torch {wanted}, and this environment has torch {found[1] if found else '?'}. Install the "
            f"wheel of your torch, or torch {wanted}."
        )
    if os.path.dirname(own) != os.path.dirname(torch):
        others = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = os.path.join(torch, "lib") + (":" + others if others else "")
    program = os.path.join(own, "bin", "longspan")
    os.execv(program, [program, *sys.argv[1:]])


main()
