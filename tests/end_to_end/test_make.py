"""What `make test` does when a part of it fails."""

import os
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


def python_tests(folder, workers=0):
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run([ROOT / "tools" / "python_tests", sys.executable, "."], cwd=folder, capture_output=True, text=True,
                          env=os.environ | dict(TEST_WORKERS=str(workers)))
    return done.returncode, done.stdout


def test_what_fails_beside_others_runs_again_alone(tmp_path):
    (tmp_path / "test_some.py").write_text(
        "import pathlib\n"
        "def test_good(): pass\n"
        "def test_disturbed():\n"
        "    seen = pathlib.Path('seen')\n"
        "    assert seen.exists() or seen.touch()\n")
    status, said = python_tests(tmp_path, workers=2)
    assert status == 0 and "== 1 failed beside others; once more, alone" in said, said
    # Named at the very end, so that a number that is right at times only is seen.
    assert said.splitlines()[-2].startswith("== passed alone, after they had failed beside others"), said
    assert said.splitlines()[-1] == "   test_some.py::test_disturbed"
    status, said = python_tests(tmp_path)
    assert status == 0 and "once more" not in said, said
    (tmp_path / "test_bad.py").write_text("def test_bad(): assert False\n")
    status, said = python_tests(tmp_path)
    assert status == 1 and said.count("FAILED test_bad.py::test_bad") == 2 and "passed alone" not in said, said
    # One that fails again hides none that does not.
    (tmp_path / "seen").unlink()
    status, said = python_tests(tmp_path)
    assert status == 1 and "== 2 failed beside others" in said, said
    assert said.splitlines()[-1] == "   test_some.py::test_disturbed"
    # So many are no accident.
    (tmp_path / "test_bad.py").write_text("".join(f"def test_{i}(): assert False\n" for i in range(6)))
    status, said = python_tests(tmp_path)
    assert status == 1 and "once more" not in said, said


def test_numbers_that_differ_are_not_given_a_second_chance(tmp_path):
    (tmp_path / "tests" / "parity").mkdir(parents=True)
    disturbed = ("import pathlib\n"
                 "def test_{0}():\n"
                 "    seen = pathlib.Path('{0}')\n"
                 "    assert seen.exists() or seen.touch()\n")
    (tmp_path / "tests" / "parity" / "test_numbers.py").write_text(disturbed.format("numbers"))
    status, said = python_tests(tmp_path)
    assert status == 1 and "once more" not in said, said
    (tmp_path / "numbers").unlink()
    (tmp_path / "test_some.py").write_text(disturbed.format("some"))
    status, said = python_tests(tmp_path)
    assert status == 1 and "== 1 failed beside others; once more, alone" in said, said
    assert said.splitlines()[-4:] == [
        "== failed, and not run again, as their numbers do not depend on the tests beside:",
        "   tests/parity/test_numbers.py::test_numbers",
        "== passed alone, after they had failed beside others (look at them if this happens again):",
        "   test_some.py::test_some"]


def test_a_failure_under_a_kernel_hides_no_later_one(tmp_path, monkeypatch, capfd):
    """tests/kernels.py runs all tests of a kernel, and says which kernel failed."""
    import kernels

    (tmp_path / "test_two.py").write_text("def test_one(): assert False\ndef test_two(): assert False\n")
    (tmp_path / "unit_tests").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "unit_tests").chmod(0o755)
    for name, value in (("ROOT", tmp_path), ("UNIT_COMMAND", [tmp_path / "unit_tests"]), ("PYTHON_TESTS", ["test_two.py"])):
        monkeypatch.setattr(kernels, name, value)
    monkeypatch.setattr(kernels, "assert_tests_exist", lambda: None)
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--only", "as chosen"])
    assert kernels.main() == 1
    said = capfd.readouterr().out
    assert "test_two.py::test_one" in said and "test_two.py::test_two" in said, said
    assert said.splitlines()[-1] == "   kernels under which tests failed: as chosen"



# What a program of doctest's prints, for 40 cases: those of the first part, of which `FAILS` says how many fail and
# "disturbed" does so once, and others, which leave their numbers.
UNIT_TESTS = """#!/bin/sh
case "$*" in
  *--count*) echo '[doctest] unskipped test cases passing the current filters: 40'; exit 0;;
  *test-case=*) echo "again: $*";;
  *--first=1[!0-9]*) ;;
  *) echo "$*" >> others; exit 0;;
esac
status=0
fail() { printf 'TEST CASE:  %s\\n\\nx.cpp:9: ERROR: CHECK( false )\\n' "$1"; status=1; }
[ -e seen ] || { touch seen; fail 'disturbed: one, two'; }
for i in $FAILS; do fail "bad $i"; done
[ $status = 0 ] || echo '[doctest] Status: FAILURE!'
[ -z "$CRASHES" ] || exit 139
exit $status
"""


def unit_tests(folder, **environment):
    program = folder / "unit_tests"
    program.write_text(UNIT_TESTS)
    program.chmod(0o755)
    done = subprocess.run([ROOT / "tools" / "unit_tests", program], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "FAILS": "", "CRASHES": "", **environment})
    return done.returncode, done.stdout


def test_a_disturbed_unit_test_runs_again_and_is_named(tmp_path):
    status, said = unit_tests(tmp_path)
    assert status == 0 and "again: --test-case=disturbed: one? two*" in said, said
    assert said.splitlines()[-2:] == ["== passed alone, after they had failed (look at them if this happens again):",
                                      "   disturbed: one, two"], said
    (tmp_path / "others").unlink()
    status, said = unit_tests(tmp_path)
    assert (status, said) == (0, "40 test cases passed\n")
    # The parts go round: whatever is in none of the others is in the first, which begins with 1.
    numbers = [tuple(int(word.partition("=")[2]) for word in line.split())
               for line in (tmp_path / "others").read_text().splitlines()]
    rest = sorted(number for first, last in numbers for number in range(first, last + 1))
    assert rest == list(range(rest[0], 41)) and 1 < rest[0] <= 21, numbers
    status, said = unit_tests(tmp_path, FAILS="1")
    assert status == 1 and "again: --test-case=bad 1*" in said and "passed alone" not in said, said
    # So many are no accident, nor is a crash.
    status, said = unit_tests(tmp_path, FAILS="1 2 3 4")
    assert status == 1 and "again" not in said, said
    (tmp_path / "seen").unlink()
    status, said = unit_tests(tmp_path, CRASHES="1")
    assert status == 139 and "again" not in said, said


THINNED = """
import pytest, thinned
@pytest.fixture(params=["x", "y", "z"])
def given(request): return request.param
@pytest.mark.thinned(2)
@pytest.mark.parametrize("word", {"a": 1, "b": 2, "c": 3})
@pytest.mark.parametrize("number, keys", [(2, dict(a=1)), pytest.param(2, dict(a=2), id="more")])
def test_pairs(number, keys, word): pass
@pytest.mark.thinned(3)
@pytest.mark.parametrize("word", "abcd")
def test_given(word, given): pass
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.rest)])
def test_numbers(number): pass
def pytest_collection_modifyitems(config, items): thinned.thin(config, items)
"""


def test_sets_are_thinned_in_make_test_alone(tmp_path):
    """Every value of each axis is left. A case that is named runs, and all run on request."""
    (tmp_path / "test_some.py").write_text(THINNED)

    def listed(what, **variables):
        command = [sys.executable, "-m", "pytest", "-p", "test_some", "--collect-only", "-q", "-W", "ignore", what]
        environment = os.environ | dict(PYTHONPATH=f"{tmp_path}:{ROOT / 'tests'}", LONGSPAN_ALL_CASES="") | variables
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment).stdout
        return [line.split("::")[1] for line in said.splitlines() if "::" in line]

    assert listed("test_some.py") == ["test_pairs[2-keys0-a]", "test_pairs[2-keys0-c]", "test_pairs[more-b]",
                                      "test_given[x-a]", "test_given[x-d]", "test_given[y-c]", "test_given[z-b]", "test_numbers[1]"]
    assert listed("test_some.py::test_numbers[2]") == ["test_numbers[2]"]
    assert len(listed("test_some.py", LONGSPAN_ALL_CASES="1")) == 2 * 3 + 4 * 3 + 2
