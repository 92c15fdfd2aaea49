"""What `make test` does when a part of it fails."""

import subprocess
import sys

from conftest import ROOT


def all_of(make, *targets):
    done = subprocess.run([ROOT / "tools" / "all_of", "make test", make, *targets], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


def test_a_failing_part_keeps_no_other_from_running(tmp_path):
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "made $2"\n[ "$2" != broken ]\n')
    make.chmod(0o755)
    assert all_of(make, "one", "two") == (0, ["made one", "made two", "== make test: all passed (one two)"])
    assert all_of(make, "one", "broken", "two") == (
        1, ["made one", "made broken", "made two", "== make test: FAILED: broken (of one broken two)"])
    assert all_of(make, "broken")[0] == 1


def test_make_test_makes_every_part():
    said = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True).stdout
    (line,) = [line for line in said.splitlines() if "tools/all_of" in line]
    assert line.split()[-3:] == ["unit-tests", "kernel-tests", "python-tests"], line


def python_tests(folder):
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run([ROOT / "tools" / "python_tests", sys.executable, "."], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_what_fails_beside_others_runs_again_alone(tmp_path):
    (tmp_path / "test_some.py").write_text(
        "import pathlib\n"
        "def test_good(): pass\n"
        "def test_disturbed():\n"
        "    seen = pathlib.Path('seen')\n"
        "    assert seen.exists() or seen.touch()\n")
    status, said = python_tests(tmp_path)
    assert status == 0 and "== 1 failed beside others; once more, alone" in said, said
    status, said = python_tests(tmp_path)
    assert status == 0 and "once more" not in said, said
    (tmp_path / "test_bad.py").write_text("def test_bad(): assert False\n")
    status, said = python_tests(tmp_path)
    assert status == 1 and said.count("test_bad.py::test_bad") == 2, said
    # So many are no accident.
    (tmp_path / "test_bad.py").write_text("".join(f"def test_{i}(): assert False\n" for i in range(6)))
    status, said = python_tests(tmp_path)
    assert status == 1 and "once more" not in said, said
