"""The harness of `make chaos` itself, without a run: it draws the same for the same seed, sees one bit, and adds up."""

import json
import pathlib
import random
import shutil
import subprocess
import sys

import pytest
from conftest import words_of_the_program

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "long"))

from chaos import comparing, drawing, faults, live, moments, runs, tables  # noqa: E402
from chaos.case import Outcome, Result  # noqa: E402


def test_cases_are_a_function_of_the_seed():
    cases = [drawing.draw_case(7, number) for number in range(60)]
    assert cases == [drawing.draw_case(7, number) for number in range(60)]
    assert cases != [drawing.draw_case(8, number) for number in range(60)]
    # Whatever else has been drawn before: a case can be played by itself.
    random.seed(1)
    assert drawing.draw_case(7, 41) == cases[41] and cases[41].rng().random() == cases[41].rng().random()
    for case in cases:
        for planned in case.planned:
            fault = faults.BY_NAME[planned.fault]
            assert fault.suits(case.kind) and planned.moment in fault.moments
        assert f"--seed 7 --case {case.number} --ddp-timeout 9" in case.replay(9)


def test_each_kind_of_fault_comes_in_turn():
    count = len(faults.FAULTS)
    assert len(faults.BY_NAME) == count
    for start in (0, count):
        first = [drawing.draw_case(3, number).planned[0].fault for number in range(start, start + count)]
        assert sorted(first) == sorted(faults.BY_NAME)
    [planned] = drawing.draw_case(3, 0, "power cut").planned
    assert planned.fault == "power cut" and planned.moment in moments.ALL


def test_kinds_cover_what_is_promised():
    rng = random.Random(0)
    kinds = [runs.draw_any_kind(rng) for _ in range(500)]
    assert {kind.keys["stage"] for kind in kinds} == set(words_of_the_program("stage"))
    assert {kind.keys.get("zero_stage", 0) for kind in kinds} == {0, 1, 2, 3}
    assert {kind.num_processes for kind in kinds} == {1, 2, 3, 4} and {kind.num_machines for kind in kinds} == {1, 2}
    modes = {kind.keys.get("sequence_parallel_mode") for kind in kinds}
    assert modes == {None} | set(runs.modes_of_the_program())
    for kind in kinds:
        assert kind.num_processes % kind.keys.get("sequence_parallel_size", 1) == 0
        commands = runs.commands_of(kind, "config.yaml")
        assert len(commands) == (kind.num_processes if kind.start == runs.RANKS else kind.num_machines)


@pytest.fixture
def folders(tmp_path):
    """Two that are the same, but for times."""
    for name, seconds in (("left", 1.5), ("right", 2.5)):
        folder = tmp_path / name
        (folder / "checkpoint-3").mkdir(parents=True)
        for weights in (folder / "model.safetensors", folder / "checkpoint-3" / "model.safetensors"):
            weights.write_bytes(bytes(range(256)))
        (folder / "config.json").write_text("{}")
        (folder / "memory.json").write_text(str(seconds))
        (folder / "trainer_state.json").write_text(json.dumps(dict(log_history=[dict(loss=0.5, train_runtime=seconds)])))
        (folder / "trainer_log.jsonl").write_text("".join(
            json.dumps(dict(current_steps=step, loss=1 / step, elapsed_time=seconds)) + "\n" for step in (1, 2, 3)))
    return tmp_path / "left", tmp_path / "right"


def test_the_same_but_for_times(folders):
    assert comparing.differences(*folders, folders[1]) == []
    (folders[1] / "checkpoint-5").mkdir()  # where it was told to stop
    assert comparing.differences(*folders, folders[1]) == []


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint-3/model.safetensors"])
def test_one_bit_is_seen(folders, name):
    content = bytearray((folders[1] / name).read_bytes())
    content[200] ^= 1
    (folders[1] / name).write_bytes(content)
    assert comparing.differences(*folders, folders[1]) == [f"{name}: 1 bytes differ, the first at 200"]


def change_a_loss(folder):
    text = (folder / "trainer_log.jsonl").read_text()
    (folder / "trainer_log.jsonl").write_text(text.replace("0.3333333333333333", "0.3333333333333334"))


def forget_a_line(folder):
    lines = (folder / "trainer_log.jsonl").read_text().splitlines(keepends=True)
    (folder / "trainer_log.jsonl").write_text("".join(lines[:1] + lines[2:]))


@pytest.mark.parametrize("change, said", [
    (change_a_loss, "trainer_log.jsonl[2]: loss: 0.3333333333333333, and 0.3333333333333334"),
    (forget_a_line, "trainer_log.jsonl: 3 entries, and 2"),
    (lambda folder: (folder / "config.json").write_text("{ }"), "config.json: 2 bytes, and 3"),
    (lambda folder: (folder / "config.json").unlink(), "config.json is only in the undisturbed run"),
    (lambda folder: (folder / "added_tokens.json").touch(), "added_tokens.json is only in the disturbed run"),
    (lambda folder: (folder / ".checkpoint-6.partial").mkdir(), ".checkpoint-6.partial is left over"),
    (lambda folder: (folder / "trainer_state.json").write_text('{"log_history": [{"loss": 0.5, "skipped": 1}]}'),
     "trainer_state.json: log_history[0]: skipped is only in the disturbed run"),
])
def test_other_differences_are_seen(folders, change, said):
    change(folders[1])
    assert comparing.differences(*folders, folders[1]) == [said]


def test_nothing_is_not_the_same_as_nothing(folders):
    for folder in folders:
        for path in folder.glob("*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert comparing.differences(*folders, folders[1]) == ["the undisturbed run has no weights"]


def test_tables_add_up():
    def outcome(case, fault, end="failed", seconds=2.0, **more):
        return Outcome(case, "sft", fault, "training", struck=True, end=end, seconds=seconds, bound=30) if not more else Outcome(
            case, "sft", fault, "training", **(dict(struck=True, end=end, seconds=seconds, bound=30) | more))
    results = [
        Result(0, [outcome(0, "power cut", seconds=1), outcome(0, "a rank is killed", seconds=5)]),
        Result(1, [outcome(1, "a rank is killed", seconds=7), outcome(1, "a rank is killed", seconds=40, hang=True)]),
        Result(2, [outcome(2, "a second run", end="done")], differences=["model.safetensors: 1 bytes differ", "and another"]),
        Result(3, [outcome(3, "power cut", struck=False, end="done")]),
        Result(4, [outcome(4, "power cut", seconds=3, wrong="a traceback", launcher_seconds=61.2, launcher_bound=90)],
               trouble="no namespace"),
    ]
    assert tables.totals(results) == dict(cases=5, faults=6, differences=1, hangs=1, wrong=1, troubles=1)
    rows = tables.rows_of(results)
    assert sum(row["faults"] for row in rows.values()) == 6 and sum(row["differences"] for row in rows.values()) == 1
    killed = rows["a rank is killed"]
    assert (killed["faults"], killed["hangs"], sorted(killed["seconds"])) == (3, 1, [5, 7, 40])
    assert rows["a second run"]["went_on"] == 1 and rows["a second run"]["seconds"] == []
    assert rows["power cut"]["wrong"] == 1
    line = next(line for line in tables.table(results, 10).splitlines() if line.startswith("a rank is killed"))
    assert line.split()[4:] == ["3", "0", "0", "1", "0", "7.0", "40.0", "30", "10", "-", "-"]
    line = next(line for line in tables.table(results, 10).splitlines() if line.startswith("power cut"))
    assert line.split()[-2:] == ["61.2", "90"]
    said = tables.summary(results, 1.0)
    assert "6 faults in 5 cases" in said and "1 differences, 1 hangs past the bound, 1 ends" in said and "1 troubles" in said
    case = drawing.draw_case(3, 2)
    text = tables.lines_of(case, results[2])
    assert "DIFFERENT: model.safetensors" in text and "the same bits" not in text
    assert "the same bits" in tables.lines_of(case, results[0])


def test_every_bound_follows_from_ddp_timeout():
    rng = random.Random(0)
    for fault in faults.FAULTS:
        kind = runs.draw_kind(rng, fault.suits)
        bound = fault.seconds(kind, 10, 5)
        assert bound - 10 == fault.seconds(kind, 0, 5) and bound >= 30
        assert bound <= 10 + faults.DIAGNOSIS + faults.TORCHRUN_PATIENCE + 15
        assert fault.launcher_seconds(kind, 10, 5) == bound + 60 and fault.launcher_seconds(kind, 100, 5) == bound + 90 + 100


@pytest.mark.parametrize("excused, text", [
    (True, "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"),
    (False, "terminate called after throwing an instance of 'std::runtime_error'\n"),
    (False, "terminate called without an active exception\n"),
    (False, 2 * "terminate called after throwing an instance of 'std::bad_alloc'\n"),
    (False, "Output run\n"),
])
def test_only_libraries_that_find_no_memory_are_excused(excused, text):
    assert live.found_no_memory_to_load(text, 1) == excused
    assert not live.found_no_memory_to_load(text, 0)  # the program had begun: it has words of its own for that


def test_a_program_that_has_begun_is_told_from_one_that_is_loaded():
    for setting, begun in (("trap '' XFSZ;", True), ("", False)):
        with subprocess.Popen(["sh", "-c", setting + "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            assert live.has_begun(process.pid) == begun
            process.stdin.close()
