"""Encoded rows that a run keeps, and later runs read."""

import json
import shutil
import time

import pytest
from conftest import Running, settings_of, write_dataset
from patience import patient_time

SAVED, READ = "The encoded rows are saved in", "The encoded rows were read from"


@pytest.fixture
def settings(models, tmp_path):
    write_dataset(tmp_path / "data")

    def make(name, **changes):
        return settings_of(models["llama"], tmp_path / "data", tmp_path / name, cache_dir=str(tmp_path / "cache"),
                           lr_scheduler_type="constant", max_steps=4, tokenized_path=str(tmp_path / "kept")) | changes

    return make


def same_bits(left, right):
    assert left.logged("loss") == right.logged("loss") and left.logged("grad_norm") == right.logged("grad_norm")
    name = "model.safetensors"
    assert (left.output_dir / name).read_bytes() == (right.output_dir / name).read_bytes()


def wait_until(holds, running, seconds=120):
    end = patient_time() + seconds
    while not holds():
        assert patient_time() < end and running.ranks[0].poll() is None, running.text()
        time.sleep(0.002)


def ended(keys, num_ranks=1):
    run = Running(keys, num_ranks).wait()
    assert set(run.statuses) == {0}, run.text
    return run


@pytest.mark.parametrize("changes", [dict(), dict(neat_packing=True, cutoff_len=256)], ids=str)
def test_kept_rows_train_the_same(changes, settings, tmp_path):
    plain = ended(settings("plain", tokenized_path="", **changes))
    saving = ended(settings("saving", **changes), 2)
    reading = ended(settings("reading", save_strategy="steps", save_steps=2, **changes))
    assert SAVED in saving.text and READ not in saving.text
    assert READ in reading.text and SAVED not in reading.text
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["rows.longspan"]
    same_bits(plain, reading)
    # Lines on the rows are told again.
    lines = [line for line in plain.texts[0].splitlines() if line.startswith(("Packing: ", "The first training example"))]
    assert lines and all(line in reading.texts[0] for line in lines)
    # A run goes on with them from a checkpoint, bit by bit.
    shutil.rmtree(reading.output_dir / "checkpoint-4")
    resumed = ended(settings("reading", save_strategy="steps", save_steps=2, **changes), 1)
    assert READ in resumed.text
    same_bits(plain, resumed)


def test_rows_of_other_data_or_keys_are_refused(settings, tmp_path):
    ended(settings("first"))
    refused = Running(settings("second", cutoff_len=64), 2).wait()
    assert set(refused.statuses) == {1} and refused.text.count("error: ") == 1, refused.text
    assert "its rows were made with cutoff_len 2048 instead of 64. Set overwrite_cache: true" in refused.texts[0]
    write_dataset(tmp_path / "data", seed=1)
    refused = Running(settings("third")).wait()
    assert set(refused.statuses) == {1} and "made with other training data" in refused.text, refused.text
    assert SAVED in ended(settings("fourth", overwrite_cache=True)).text
    assert READ in ended(settings("fifth")).text


def test_of_two_runs_at_once_one_encodes(settings):
    running = [Running(settings(name)) for name in ("first", "second")]
    texts = [run.wait().text for run in running]
    assert sorted((SAVED in text, READ in text) for text in texts) == [(False, True), (True, False)], texts


def test_large_data_sets_are_kept_in_the_cache(settings, tmp_path):
    rows = [json.dumps({"instruction": "why", "output": "because " * 10000}) for _ in range(220)]
    (tmp_path / "data" / "large.jsonl").write_text("\n".join(rows))
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"large": {"file_name": "large.jsonl"}}))
    # Packing waits for all rows; without it the last step would end the encoding.
    keys = dict(dataset="large", cutoff_len=32, max_steps=1, tokenized_path="", packing=True)
    killed, cache = Running(settings("killed", **keys)), tmp_path / "cache"
    wait_until(lambda: list(cache.glob("rows/*/.longspan-lock")), killed)
    killed.ranks[0].kill()
    killed.wait()
    # The killed writer's file had no name.
    assert [path.name for path in cache.glob("rows/*/*")] == [".longspan-lock"]
    first, second = ended(settings("first", **keys)), ended(settings("second", **keys))
    assert f"are kept in {cache}/rows/" in first.text and READ in second.text
    same_bits(first, second)
    assert [path.name for path in cache.glob("rows/*/*")] == ["rows.longspan"]
