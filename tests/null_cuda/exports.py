"""Functions that a stand-in does not have, as C: each says its name and ends the process. They are weak, so that those
that are there take their places. The version script gives symbols the versions of the library that is stood in for.

    exports.py LIBRARY STUBS.c MAP       of a library
    exports.py HEADER.h STUBS.c          of the functions of the driver, whose library is nowhere"""

import pathlib
import re
import subprocess
import sys

STUB = 'STUB(%s)\n'
HEAD = """#include <stdio.h>
#include <stdlib.h>
#define STUB(name) __attribute__((weak, visibility("default"))) int name(void) { \\
    fprintf(stderr, "null CUDA: %s is not there\\n", #name); abort(); }
"""


def symbols_of(library):
    """Names and versions of functions."""
    listed = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], capture_output=True, text=True,
                            check=True).stdout
    for kind, symbol in re.findall(r"^[0-9a-f]+ (\w) (\S+)$", listed, re.M):
        name, _, version = symbol.partition("@@")
        if kind in "TW" and re.fullmatch("_*(cu|nccl|pnccl)[A-Za-z0-9_]+", name):
            yield name, version


def symbols_of_header(header):
    """As the header's own macros name them."""
    text = pathlib.Path(header).read_text(errors="replace")
    renamed = dict(re.findall(r"^#\s*define (cu\w+)\s+(cu\w+_v\d)$", text, re.M))
    for name in set(re.findall(r"CUDAAPI (cu[A-Z]\w+)\(", text)):
        yield renamed.get(name, name), ""


def main(source, stubs, version_script=None):
    symbols = sorted(set(symbols_of_header(source) if source.endswith(".h") else symbols_of(source)))
    names = sorted({name for name, _ in symbols})
    pathlib.Path(stubs).write_text(HEAD + "".join(STUB % name for name in names))
    if version_script:
        versions = {}
        for name, version in symbols:
            versions.setdefault(version, []).append(name)
        text = ""
        for version, names in versions.items():
            hidden = " local: *;" if version == symbols[0][1] else ""
            text += f"{version} {{ global:\n" + "".join(f"  {name};\n" for name in names) + f"{hidden} }};\n"
        pathlib.Path(version_script).write_text(text)


main(*sys.argv[1:])
