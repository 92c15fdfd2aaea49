"""streaming: rows that are read and encoded during training."""

import json
import shutil

import pytest
from conftest import Running, add_dataset, run_to_end, same_run, settings_of, write_dataset


@pytest.fixture
def settings(models, tmp_path):
    write_dataset(tmp_path / "data")

    def make(name, **changes):
        # 4 of 24 rows a step: the checkpoint is in the middle of the first epoch, the end in the second.
        return settings_of(models["llama"], tmp_path / "data", tmp_path / name, streaming=True, buffer_size=10,
                           max_steps=8, save_strategy="steps", save_steps=3, cutoff_len=64) | changes

    return make


def halfway(run, output_dir):
    shutil.copytree(run.output_dir / "checkpoint-3", output_dir / "checkpoint-3")


def same_bits(left, right):
    assert left.logged("loss") == right.logged("loss") and left.logged("grad_norm") == right.logged("grad_norm")
    name = "model.safetensors"
    assert (left.output_dir / name).read_bytes() == (right.output_dir / name).read_bytes()


@pytest.mark.parametrize("changes", [
    dict(), dict(neat_packing=True, cutoff_len=256), dict(stage="pt"), dict(stage="dpo", dataset="pairs"),
    dict(stage="kto", dataset="verdicts", pref_ftx=0.1)], ids=str)
def test_goes_on_at_the_row(changes, settings, tmp_path):
    """Bit by bit in one process; the same rows on two, whether they share rows or have rows of their own."""
    columns = dict(prompt="instruction", query="input")
    if changes.get("dataset") == "pairs":
        rows = [dict(instruction=f"word{i}", input="", chosen=f"yes{i}", rejected="no") for i in range(24)]
        add_dataset(tmp_path / "data", "pairs", rows, ranking=True, columns=columns | dict(chosen="chosen", rejected="rejected"))
    if changes.get("dataset") == "verdicts":
        rows = [dict(instruction=f"word{i}", input="", output=f"yes{i}" * (1 + i % 5), good=i % 3 > 0) for i in range(24)]
        add_dataset(tmp_path / "data", "verdicts", rows, columns=columns | dict(response="output", kto_tag="good"))
    whole = run_to_end(settings("whole", **changes))
    assert len(set(whole.logged("loss"))) == 8
    halfway(whole, tmp_path / "on")
    on = run_to_end(settings("on", **changes))
    assert "step 3 of 8" in on.text
    same_bits(whole, on)
    for name, keys in {"sharing": dict(sequence_parallel_size=2), "apart": dict(gradient_accumulation_steps=2)}.items():
        halfway(whole, tmp_path / name)
        two = run_to_end(settings(name, **changes, **keys), 2)
        assert "step 3 of 8" in two.text
        same_run(whole, two)


def test_the_rows_of_the_data_set(settings):
    """In the order of the file, an epoch trains as the data set that is encoded first."""
    keys = dict(disable_shuffling=True, max_steps=6, save_strategy="no")
    same_bits(run_to_end(settings("streamed", **keys)),
              run_to_end({key: value for key, value in settings("known", **keys).items()
                          if key not in ("streaming", "buffer_size")}))


def test_evaluation(settings):
    """Rows of val_size are no rows of training."""
    run = run_to_end(settings("run", val_size=4, eval_strategy="steps", eval_steps=4, save_strategy="no"))
    assert len(run.logged("eval_loss")) == 2


def test_other_rows_are_refused(settings, tmp_path):
    whole = run_to_end(settings("whole"))
    for number, (keys, told) in enumerate([(dict(buffer_size=11), "buffer_size was 10, and is 11"),
                                           (dict(cutoff_len=32), "cutoff_len was 64, and is 32"),
                                           ({}, "training data")]):
        if not keys:
            write_dataset(tmp_path / "data", seed=1)
        halfway(whole, tmp_path / f"on{number}")
        refused = Running(settings(f"on{number}", **keys)).wait()
        assert refused.status == 1 and told in refused.text, refused.text


def test_bad_rows(settings, tmp_path):
    """They end the run on every rank with one message, or are left out and counted at the end."""
    lines = [json.dumps(dict(instruction=f"word{i}", output="so")) for i in range(30)]
    lines[20] = lines[20][:-5]
    (tmp_path / "data" / "rows.jsonl").write_text("\n".join(lines))
    keys = dict(dataset="rows.jsonl", save_strategy="no", template="chatml")
    refused = Running(settings("stopped", **keys), 2).wait()
    assert set(refused.statuses) == {1} and refused.text.count("error: ") == 1, refused.text
    assert "rows.jsonl, line 21" in refused.text and "on_bad_row: skip" in refused.text
    skipping = run_to_end(settings("skipping", on_bad_row="skip", **keys))
    assert "left out, which cannot be used" in skipping.text and "rows.jsonl, line 21" in skipping.text


def test_a_bad_row_is_left_out_after_the_stop(settings, tmp_path):
    """A run that stopped at a bad row goes on with on_bad_row: skip from its checkpoint, also with other evaluation."""
    # 1 MiB ends a window of rows: the bad row is in the second one.
    lines = [json.dumps(dict(instruction=f"word{i}", output="so " * 40_000)) for i in range(20)]
    lines[15] = lines[15][:-5]
    (tmp_path / "data" / "rows.jsonl").write_text("\n".join(lines))
    keys = dict(dataset="rows.jsonl", template="chatml", disable_shuffling=True, save_steps=1, max_steps=4)
    stopped = Running(settings("run", **keys)).wait()
    assert stopped.status == 1 and "rows.jsonl, line 16" in stopped.text, stopped.text
    keys |= dict(on_bad_row="skip", eval_dataset="chats", do_eval=True)
    on = run_to_end(settings("run", **keys))
    assert "step 2 of 4" in on.text and "rows.jsonl, line 16" in on.text, on.text
    same_run(run_to_end(settings("whole", **keys)), on)
