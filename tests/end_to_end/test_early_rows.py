"""Training while rows are encoded: the first steps do not wait for all rows."""

import json
import shutil
import signal
import time

import pytest
from conftest import Running, add_dataset, run_to_end, settings_of, write_dataset
from patience import patient_time

EARLY, FIRST = "The steps begin while the rows are encoded", "All rows are encoded before the first step: "
KEPT, READ = "The encoded rows are saved in", "The encoded rows were read from"
PAIRS = dict(prompt="instruction", query="input", chosen="chosen", rejected="rejected")


@pytest.fixture
def settings(models, tmp_path):
    write_dataset(tmp_path / "data")

    def make(name, **changes):
        return settings_of(models["llama"], tmp_path / "data", tmp_path / name, cache_dir=str(tmp_path / "cache"),
                           max_steps=8, cutoff_len=96, tokenized_path=str(tmp_path / "kept")) | changes

    return make


def same_bits(left, right):
    for key in ("loss", "grad_norm", "eval_loss"):
        assert left.logged(key) == right.logged(key)
    name = "model.safetensors"
    assert (left.output_dir / name).read_bytes() == (right.output_dir / name).read_bytes()


def add_pairs(folder):
    rows = [dict(instruction=f"word{i}", input="", chosen=f"yes{i}", rejected="no") for i in range(24)]
    add_dataset(folder, "pairs", rows, ranking=True, columns=PAIRS)


def add_texts(folder):
    """Texts with blank ones among them, which give no row."""
    rows = [dict(text=["", " \n", "word", "some longer text of many words, "][i % 4] * (i + 1)) for i in range(40)]
    add_dataset(folder, "texts", rows, columns=dict(prompt="text"))


def add_judged(folder):
    rows = [dict(instruction=f"word{i}", input="", output=f"yes{i} it is", good=i % 3 > 0) for i in range(24)]
    add_dataset(folder, "judged", rows, columns=dict(prompt="instruction", response="output", kto_tag="good"))


# Each with a key that makes the run encode first, and leaves the numbers as they are.
KINDS = {
    "sft": (dict(val_size=0.2, eval_strategy="steps", eval_steps=3, num_train_epochs=2, max_steps=-1), {}, dict(balance_batches=True)),
    "pt": (dict(stage="pt", dataset="texts", packing=False, val_size=5, do_eval=True), {}, dict(balance_batches=True)),
    "dpo": (dict(stage="dpo", dataset="pairs", eval_dataset="pairs", eval_strategy="steps", eval_steps=4),
            dict(sequence_parallel_size=2), dict(precompute_ref_log_probs=True)),
    "kto": (dict(stage="kto", dataset="judged"), {}, dict(precompute_ref_log_probs=True)),
    "added tokens": (dict(stage="pt", dataset="texts", packing=False, add_tokens="some longer,word", resize_vocab=True), {},
                     dict(balance_batches=True)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_with_kept_rows(kind, settings, tmp_path):
    for add in (add_pairs, add_texts, add_judged):
        add(tmp_path / "data")
    changes, parallel, waits = KINDS[kind]
    file = tmp_path / "kept" / "rows.longspan"
    for num_ranks in (1, 2, 3) if kind == "sft" else (2,):
        keys = changes | (parallel if num_ranks == 2 else {})
        file.unlink(missing_ok=True)
        cold = run_to_end(settings(f"cold{num_ranks}", **keys), num_ranks)
        rows = file.read_bytes()
        warm = run_to_end(settings(f"warm{num_ranks}", **keys), num_ranks)
        assert EARLY in cold.text and KEPT in cold.text and READ not in cold.text
        assert READ in warm.text and EARLY not in warm.text and file.read_bytes() == rows
        same_bits(cold, warm)
    # The file is that of a run that encodes first: rows, and the lines on them.
    file.unlink()
    first = run_to_end(settings("first", **changes | waits), 1)
    assert FIRST in first.text and EARLY not in first.text and file.read_bytes() == rows


def test_a_checkpoint_has_the_fingerprint_of_all_rows(settings, tmp_path):
    """A run goes on from it, bit by bit, with kept rows and without."""
    keys = dict(save_strategy="steps", save_steps=3, save_total_limit=9)
    cold = run_to_end(settings("cold", **keys))
    assert EARLY in cold.text
    for name, said in ("found", READ), ("gone", FIRST + "a checkpoint belongs to rows with its fingerprint"):
        shutil.copytree(cold.output_dir / "checkpoint-3", tmp_path / name / "checkpoint-3")
        if name == "gone":
            (tmp_path / "kept" / "rows.longspan").unlink()
        on = run_to_end(settings(name, **keys))
        assert said in on.text and "step 3 of 8" in on.text
        same_bits(cold, on)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_bad_row_ends_the_run_on_all_ranks(num_ranks, settings, tmp_path):
    """Only its encoding shows that it is bad, and it is the last one."""
    rows = [{"messages": [{"role": "user", "content": f"word{i} " * 100}, {"role": "assistant", "content": "because"}]}
            for i in range(400)]
    rows[-1]["messages"][1]["weight"] = 0
    add_dataset(tmp_path / "data", "long", rows, formatting="openai")
    keys = dict(dataset="long", disable_shuffling=True, max_steps=1000, preprocessing_num_workers=1)
    run = Running(settings("bad", **keys), num_ranks).wait()
    assert set(run.statuses) == {1} and run.text.count("error: ") == 1, run.text
    assert EARLY in run.text and "row 400: no token of the row is trained" in run.texts[0], run.text
    assert not list((tmp_path / "kept").glob("rows*"))


def add_large(folder, num_rows=60):
    """Rows of 96 KB: the steps begin long before all are encoded. The last row is bad, which its encoding shows."""
    for name, weight in ("large", 1), ("large_bad", 0):
        rows = [{"messages": [{"role": "user", "content": "why"}, {"role": "assistant", "content": f"because {i} " * 8000}]}
                for i in range(num_rows)]
        rows[-1]["messages"][1]["weight"] = weight
        add_dataset(folder, name, rows, formatting="openai")


def test_a_killed_run_leaves_nothing_and_others_do_not_wait(settings, tmp_path):
    """Of two runs at once one keeps the rows. The next one encodes where it was killed."""
    add_large(tmp_path / "data", num_rows=100)
    keys = dict(dataset="large", cutoff_len=32, max_steps=500)
    killed = Running(settings("killed", **keys))
    until(lambda: "'loss'" in killed.text(), killed)
    killed.ranks[0].send_signal(signal.SIGSTOP)
    other = Running(settings("other", **keys | dict(max_steps=3)))
    until(lambda: "this process encodes them, too, without keeping them" in other.text(), other)
    killed.ranks[0].kill()
    killed.wait()
    assert KEPT not in killed.text()  # it was killed while it encoded
    other = other.wait()
    last = Running(settings("last", **keys | dict(max_steps=3))).wait()
    assert EARLY in other.text and "no rows are kept for later runs" in other.text
    assert EARLY in last.text and "The run goes on until all rows are encoded" in last.text and KEPT in last.text
    same_bits(other, last)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["rows.longspan"]


def test_a_run_that_is_stopped_while_it_encodes_goes_on(settings, tmp_path):
    """One rank of two is stopped. Its checkpoint is saved at once, and gives the bits of a run without a stop."""
    add_large(tmp_path / "data")
    keys = dict(dataset="large", cutoff_len=32, max_steps=30, val_size=0.1, eval_strategy="steps", eval_steps=15)
    run = Running(settings("run", **keys), num_ranks=2)
    until(lambda: "'loss'" in run.text(), run)
    run.ranks[1].terminate()
    stopped = run.wait()
    assert stopped.statuses == [0, 0] and EARLY in stopped.text and KEPT not in stopped.text, stopped.text
    (checkpoint,) = stopped.output_dir.glob("checkpoint-*")
    assert json.loads((checkpoint / "training_state.json").read_text())["run"]["rows"].startswith("texts ")
    for name in "found", "other":
        shutil.copytree(checkpoint, tmp_path / name / checkpoint.name)
    step = f"step {checkpoint.name.removeprefix('checkpoint-')} of 30"
    on = run_to_end(settings("run", **keys), 2)
    assert step in on.text and EARLY in on.text and KEPT in on.text
    whole, found = (run_to_end(settings(name, **keys), 2) for name in ("whole", "found"))
    assert READ in whole.text and READ in found.text and step in found.text
    same_bits(whole, on)
    same_bits(whole, found)
    other = Running(settings("other", **keys | dict(cutoff_len=31, tokenized_path=str(tmp_path / "others")))).wait()
    assert other.status == 1 and "the fingerprint of the training rows was texts" in other.text
    assert "cutoff_len was 32, and is 31" in other.text, other.text


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_evaluation(how, settings, tmp_path):
    add_large(tmp_path / "data")
    run = Running(settings("run", dataset="large", cutoff_len=32, val_size=40, eval_strategy="steps", eval_steps=1))
    until(lambda: "'loss'" in run.text(), run)
    run.ranks[0].send_signal(how)
    run = run.wait()
    status, said = (0, "The evaluation after step 1 was left out") if how == signal.SIGTERM else (130, "Interrupted after step 1")
    assert run.status == status and said in run.text and KEPT not in run.text, run.text


@pytest.mark.parametrize("what", ["row", "folder"])
def test_after_the_steps_nothing_ends_with_an_error(what, settings, tmp_path):
    """A bad row that no step needed, and a kept file that cannot be written."""
    add_large(tmp_path / "data")
    keys = dict(dataset="large_bad" if what == "row" else "large", cutoff_len=32, max_steps=1, disable_shuffling=True)
    run = Running(settings("run", **keys))
    until(lambda: "The steps are done and the model is saved" in run.text(), run)
    if what == "folder":
        shutil.rmtree(tmp_path / "kept")
    run = run.wait()
    assert run.status == 0 and (run.output_dir / "model.safetensors").exists() and KEPT not in run.text, run.text
    warning = {"row": "since their encoding ended with an error", "folder": "warning: The encoded rows are not kept"}[what]
    assert warning in run.text and ("row 60: no token of the row" in run.text) == (what == "row"), run.text


def test_says_why_rows_are_encoded_first(settings, tmp_path):
    for name, why, keys in [("packed", "packing needs the lengths of all rows", dict(packing=True)),
                            ("skipping", "with on_bad_row: skip", dict(on_bad_row="skip"))]:
        run = run_to_end(settings(name, **keys | dict(tokenized_path=str(tmp_path / "rows" / name), max_steps=1)))
        assert FIRST + why in run.text


def until(holds, running, seconds=120):
    end = patient_time() + seconds
    while not holds():
        assert patient_time() < end and running.ranks[0].poll() is None, running.text()
        time.sleep(0.002)
