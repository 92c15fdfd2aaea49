"""The package itself: types, other versions of torch, the wheel."""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from ranks import BUILT

ROOT = pathlib.Path(__file__).resolve().parents[2]


def python(folder, code):
    return subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"],
                          capture_output=True, text=True)


def test_types():
    checker = pathlib.Path(sys.executable).with_name("basedpyright")
    ran = subprocess.run([checker, "--project", ROOT, "--pythonpath", sys.executable], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, which a test changes."""
    folder = tmp_path / "site"
    shutil.copytree(BUILT / "longspan", folder / "longspan", ignore=shutil.ignore_patterns("_core.so", "__pycache__"))
    (folder / "longspan/_core.so").symlink_to(BUILT / "longspan/_core.so")
    return folder


def test_another_torch_is_refused(copy):
    (copy / "longspan/_built_for_torch.txt").write_text("2.3.1\n")
    ran = python(copy, "import longspan")
    assert "built for torch 2.3, and torch " in ran.stderr and "Install the wheel for torch " in ran.stderr, ran.stderr


def test_the_import_is_cheap():
    """At most 0.3 s of processor time beyond torch's import, without transformers. Forks share the import of torch."""
    code = """
import os, statistics, time
import torch

def seconds():
    end, start = os.pipe()
    if os.fork() == 0:
        before = time.process_time()
        import longspan
        os.write(start, f"{time.process_time() - before} {'transformers' in sys.modules}".encode())
        os._exit(0)
    os.wait()
    return os.read(end, 100).decode().split()

found = [seconds() for _ in range(3)]
print(statistics.median(float(number) for number, _ in found), {word for _, word in found})
"""
    ran = python(BUILT, code)
    number, words = ran.stdout.split(maxsplit=1)
    assert words.strip() == "{'False'}" and float(number) < 0.3, ran


def test_options_are_those_of_parallelize():
    """The signature and the type for functions that pass options on have the same names."""
    import inspect

    import longspan

    named = set(inspect.signature(longspan.parallelize).parameters) - {"model", "loader", "sequence_parallel_size"}
    assert set(longspan.ParallelizeOptions.__annotations__) == named


def test_missing_operators(copy):
    (copy / "longspan/_core.so").unlink()
    assert "this installation has no operators for Python" in python(copy, "import longspan").stderr


def test_the_command_needs_its_torch(copy, tmp_path):
    """The command of an installed package finds the program and torch without an import of either."""
    program = copy / "longspan/bin/longspan"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@ $LD_LIBRARY_PATH"\n')
    program.chmod(0o755)
    command = (ROOT / "python/program.py").read_text()
    said = python(copy, f"sys.argv[1:] = ['train', 'x.yaml']\n{command}")
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    assert said.stdout == f"train x.yaml {torch}/lib\n", said
    (copy / "longspan/_built_for_torch.txt").write_text("2.3.1\n")
    assert "longspan: built for torch 2.3, and this environment has torch 2." in python(copy, command).stderr


def test_a_wheel_names_its_torch(tmp_path, monkeypatch):
    import zipfile

    import torch

    for name in ("scikit_build_core", "scikit_build_core.build"):  # of the build environment alone
        module = type(sys)(name)
        module.build, module.__all__ = module, []
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(ROOT / "tools/build_backend"))
    import longspan_build

    with zipfile.ZipFile(tmp_path / "longspan-0.1.0-py3-none-linux_x86_64.whl", "w") as wheel:
        wheel.writestr("longspan/__init__.py", "x = 1\n")
        wheel.writestr(zipfile.ZipInfo("longspan-0.1.0.data/scripts/longspan"), "#!python\n")
        wheel.writestr("longspan-0.1.0.dist-info/METADATA",
                       "Metadata-Version: 2.1\nName: longspan\nVersion: 0.1.0\nRequires-Dist: torch<2.16,>=2.11\n\nText.\n")
        wheel.writestr("longspan-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n")
        wheel.writestr("longspan-0.1.0.dist-info/RECORD", "")
    name = longspan_build._say_which_torch(str(tmp_path), "longspan-0.1.0-py3-none-linux_x86_64.whl")
    minor = ".".join(torch.__version__.split(".")[:2])
    assert [path.name for path in tmp_path.glob("*.whl")] == [name] == [f"longspan-0.1.0+torch{minor}-py3-none-linux_x86_64.whl"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site",
                    tmp_path / name], check=True)
    metadata = (tmp_path / f"site/longspan-0.1.0+torch{minor}.dist-info/METADATA").read_text()
    assert f"\nVersion: 0.1.0+torch{minor}\n" in metadata and f"\nRequires-Dist: torch=={minor}.*\n" in metadata
    assert (tmp_path / "site/bin/longspan").read_text().startswith(f"#!{sys.executable}")


def test_the_page_names_the_tested_versions():
    text = (ROOT / "tools/test-requirements.txt").read_text()
    installed = re.findall(r"^(transformers|trl|peft|accelerate|deepspeed)==(\d+\.\d+)", text, re.M)
    page = " ".join((ROOT / "docs/python-hugging-face.md").read_text().split())
    assert len(installed) == 7
    for package, version in installed:
        assert len(re.findall(rf"\b{package} {re.escape(version)}\b(?!\.\d)", page, re.I)) == 1, (package, version)
