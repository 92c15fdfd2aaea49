"""What `make test` does when a part of it fails."""

import subprocess

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
