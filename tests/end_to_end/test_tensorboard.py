"""report_to: tensorboard, read by TensorBoard itself."""

import json
import signal

import pytest
from conftest import Running, settings_of
from faults import wait_for
from full_disk import full_disk, shim  # noqa: F401 (fixtures)


def points(folder):
    """tag -> [(step, value)], as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(folder), size_guidance=dict(scalars=0)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def points_in_files(folder):
    """All that lies in the files, without TensorBoard's own rule for runs that start again."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def wanted(history):
    """What transformers' TensorBoardCallback makes of the same log."""
    from transformers.integrations.integration_utils import rewrite_logs
    tags = {}
    for entry in history:
        for tag, value in rewrite_logs({k: v for k, v in entry.items() if k != "step"}).items():
            tags.setdefault(tag, []).append((entry["step"], value))
    return tags


def require_same(found, history):
    expected = wanted(history)
    assert found.keys() == expected.keys()
    for tag, values in expected.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in values], tag
        assert [value for _, value in found[tag]] == pytest.approx([value for _, value in values], rel=2**-24), tag


EVALUATES = dict(eval_dataset="held_out", eval_strategy="steps", eval_steps=2)


@pytest.mark.parametrize("report_to, keys", [("tensorboard", EVALUATES), (["all"], dict())])
def test_the_numbers_of_the_log(report_to, keys, train):
    run = train(max_steps=4, report_to=report_to, **keys)
    require_same(points(run.output_dir / "runs"), run.history)


def test_none_writes_none(train):
    assert not (train(max_steps=1, report_to=["none"]).output_dir / "runs").exists()


def test_preferences(models, tmp_path):
    rows = [dict(instruction=f"question {i}", input="", chosen="a good answer", rejected="bad") for i in range(4)]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    columns = dict(prompt="instruction", chosen="chosen", rejected="rejected")
    (tmp_path / "dataset_info.json").write_text(json.dumps(dict(chats=dict(file_name="pairs.json", ranking=True, columns=columns))))
    run = Running(settings_of(models["llama"], tmp_path, tmp_path / "run", stage="dpo", max_steps=2,
                              report_to="tensorboard")).wait()
    assert run.status == 0, run.text
    found = points(run.output_dir / "runs")
    assert "train/rewards/accuracies" in found
    require_same(found, run.history)


def test_own_folder_and_name(train, tmp_path):
    run = train(max_steps=1, report_to="tensorboard", logging_dir=str(tmp_path / "board"), run_name="first")
    require_same(points(tmp_path / "board" / "first"), run.history)
    assert not (run.output_dir / "runs").exists()


def test_going_on_doubles_nothing(models, data, tmp_path):
    """Killed between two checkpoints, twice: the points after the checkpoint come again, and are there once."""
    keys = settings_of(models["llama"], data, tmp_path / "run", max_steps=100000, save_strategy="steps", save_steps=3,
                       save_total_limit=2, report_to="tensorboard")
    board, last = tmp_path / "run" / "runs", 0
    for _ in range(2):
        running = Running(keys)
        wait_for(running, "'loss'")
        while running.text().count("'loss'") < 5 or "Saved" not in running.text():
            assert running.ranks[0].poll() is None, running.text()
        running.ranks[0].send_signal(signal.SIGKILL)
        running.wait()
        newest = points_in_files(board)["train/loss"][-1][0]
        assert newest > last
        last = newest
    run = Running(keys | dict(max_steps=last + 3)).wait()
    assert run.status == 0 and "Going on from" in run.text, run.text
    assert len(list(board.iterdir())) == 3
    for found in (points(board), points_in_files(board)):
        require_same(found, run.history)
        assert [step for step, _ in found["train/loss"]] == list(range(1, last + 4))


def test_beginning_anew_leaves_nothing_of_the_old_run(train, models, data, tmp_path):
    """In a folder of several runs, too, of which each takes its own files only."""
    board = tmp_path / "board"
    keys = dict(report_to="tensorboard", logging_dir=str(board))
    first, other = train(max_steps=3, **keys), train(max_steps=1, **keys)
    assert len(list(board.iterdir())) == 2
    again = Running(settings_of(models["qwen2"], data, first.output_dir, max_steps=2, overwrite_output_dir=True, **keys)).wait()
    assert again.status == 0, again.text
    steps = [step for step, _ in points_in_files(board)["train/train_loss"]]
    assert sorted(steps) == [1, 2] and other.status == 0


def test_a_full_disk_loses_no_point(models, data, full_disk, tmp_path):
    """Nor does it end the run; after half a record a reader would find no other."""
    flag = tmp_path / "full"
    full_disk("tfevents", FULL_FLAG=flag)
    running = Running(settings_of(models["llama"], data, tmp_path / "run", max_steps=100000, report_to="tensorboard"))
    wait_for(running, "'loss'")
    flag.touch()
    wait_for(running, "TensorBoard's file cannot be written")
    flag.unlink()
    said = running.text().count("'loss'")
    while running.text().count("'loss'") < said + 3:
        assert running.ranks[0].poll() is None, running.text()
    running.ranks[0].send_signal(signal.SIGTERM)
    run = running.wait()
    assert run.status == 0 and run.text.count("cannot be written") == 1, run.text
    steps = [step for step, _ in points(run.output_dir / "runs")["train/loss"]]
    assert steps == list(range(1, run.text.count("'loss'") + 1))


def test_a_folder_that_cannot_be_is_named_before_anything_is_touched(train, models, data, tmp_path):
    (tmp_path / "file").touch()
    output = train(max_steps=1).output_dir

    def contents():
        return {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}

    before = contents()
    assert {"trainer_state.json", "train_results.json", "trainer_log.jsonl"} <= before.keys()
    run = Running(settings_of(models["llama"], data, output, report_to="tensorboard", overwrite_output_dir=True,
                              logging_dir=str(tmp_path / "file" / "below"))).wait()
    assert run.status == 1 and "logging_dir" in run.text and "cannot be written" in run.text, run.text
    assert "Free some space" not in run.text and "'loss'" not in run.text
    assert contents() == before
