"""Mistakes, lost ranks, full disks and Ctrl-C: a clear word, a status, nothing half-written."""

import functools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import time

import faults
import pytest
from conftest import Running, add_dataset, bytes_of_weights, settings_of
from faults import children_of
from patience import patient_time

LIMIT = 10  # seconds in which every rank must have ended
START = 20  # seconds more where a loaded machine has to start the processes first
wait_for = functools.partial(faults.wait_for, seconds=LIMIT + START)


def leftovers(folder):
    if not folder.exists():
        return []
    return [str(path) for path in folder.rglob("*") if path.name.startswith(".")]


def fails(settings, *words, num_ranks=2, status=1):
    """Every rank ends with `status` in time; the message, said once, has the words."""
    output = pathlib.Path(settings["output_dir"])
    existed = output.exists()
    start = patient_time()
    finished = Running(settings, num_ranks).wait(timeout=LIMIT + START)
    assert patient_time() - start < LIMIT + START
    assert set(finished.statuses) == {status}, finished.text
    for word in words:
        assert word in finished.texts[0], finished.text
    if not existed:
        assert not output.exists(), list(output.iterdir())
    return finished


def said_once(finished):
    assert finished.text.count("error:") == 1, finished.text


@pytest.fixture
def settings(models, data, tmp_path):
    def make(**changes):
        return settings_of(models["llama"], data, tmp_path / "out", max_steps=2, **changes)

    return make


def test_missing_dataset_file(settings, data, tmp_path):
    folder = tmp_path / "data"
    add_dataset(folder, "chats", [])
    (folder / "chats.json").unlink()
    said_once(fails(settings(dataset_dir=str(folder)), "chats.json"))


def test_broken_json_names_file_and_line(settings, tmp_path):
    folder = tmp_path / "data"
    add_dataset(folder, "chats", [])
    (folder / "chats.json").write_text('[\n{"instruction": "a", "output": "b"},\n{"instruction" "c"}\n]')
    said_once(fails(settings(dataset_dir=str(folder)), "chats.json", "3"))


def test_wrong_columns(settings, tmp_path):
    folder = tmp_path / "data"
    add_dataset(folder, "chats", [{"question": "a", "answer": "b"}])
    said_once(fails(settings(dataset_dir=str(folder)), "output", "question"))


def test_a_row_without_an_answer(settings, tmp_path):
    folder = tmp_path / "data"
    add_dataset(folder, "chats", [{"instruction": "a", "input": "", "output": "b"},
                                  {"instruction": "c", "input": "", "output": ""}])
    said_once(fails(settings(dataset_dir=str(folder)), "chats.json", "2"))


def test_degree_that_does_not_divide_the_ranks(settings):
    fails(settings(sequence_parallel_size=3), "3", "2")


def test_heads_that_a_mode_cannot_split(settings, models):
    finished = fails(
        settings(sequence_parallel_size=4, sequence_parallel_mode="ulysses")
        | dict(model_name_or_path=models["qwen2"]), "14", "zigzag-ring", num_ranks=4)
    assert "zigzag-ring" in finished.texts[0]


@pytest.fixture
def broken_model(models, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(models["llama"], folder)
    return folder


def test_truncated_weights(settings, broken_model):
    weights = broken_model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    fails(settings() | dict(model_name_or_path=str(broken_model)), "model.safetensors")


def test_corrupt_weights(settings, broken_model):
    weights = broken_model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[8:40] = b"x" * 32
    weights.write_bytes(content)
    fails(settings() | dict(model_name_or_path=str(broken_model)), "model.safetensors")


def test_shapes_that_differ_from_the_config(settings, broken_model):
    config = json.loads((broken_model / "config.json").read_text())
    config["intermediate_size"] += 8
    (broken_model / "config.json").write_text(json.dumps(config))
    fails(settings() | dict(model_name_or_path=str(broken_model)), "mlp", "config.json")


def test_a_tokenizer_larger_than_the_model(settings, broken_model, tmp_path):
    """Known before the first step, not at the row that has the token."""
    file = broken_model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | dict(id=480, content="<|new|>"))
    file.write_text(json.dumps(tokenizer))
    folder = tmp_path / "data"
    answers = ["a", "b", "c <|new|>"]
    add_dataset(folder, "chats", [dict(instruction="q", input="", output=a) for a in answers])
    said_once(fails(settings(dataset_dir=str(folder)) | dict(model_name_or_path=str(broken_model)),
                    "chats.json, row 3: token 480", "vocab_size"))


def change_weights(folder, change):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_row_of_another_group_that_is_not_a_number(settings, broken_model, tmp_path):
    """Rank 0 names the row, though rank 1 has it."""
    change_weights(broken_model, lambda w: w["model.embed_tokens.weight"][0].fill_(float("nan")))
    folder = tmp_path / "data"
    questions = ["fine", "<|endoftext|> has token 0", "fine", "fine"]
    add_dataset(folder, "chats", [dict(instruction=q, input="", output="b") for q in questions])
    run = Running(settings(dataset_dir=str(folder), disable_shuffling=True)
                  | dict(model_name_or_path=str(broken_model), gradient_accumulation_steps=1),
                  2).wait()
    assert set(run.statuses) == {1}, run.text
    assert "from row 1 of the training set" in run.texts[0] and "own loss nan." in run.texts[0], run.text
    assert "The learning rate is 0.001." in run.texts[0] and "-nan" not in run.text, run.text
    said_once(run)


def test_loss_that_is_not_a_number(settings, broken_model):
    change_weights(broken_model, lambda w: w["model.norm.weight"].fill_(float("nan")))
    run = Running(settings(sequence_parallel_size=2)
                  | dict(model_name_or_path=str(broken_model)), 2).wait()
    assert set(run.statuses) == {1}, run.text
    assert "step 1" in run.texts[0] and "nan" in run.texts[0] and "row" in run.texts[0]
    said_once(run)
    assert not (run.output_dir / "model.safetensors").exists()


@pytest.mark.parametrize("mode", ["ulysses", "zigzag-ring"])
def test_a_rank_killed_in_mid_step(mode, settings):
    running = Running(
        settings(sequence_parallel_size=2, sequence_parallel_mode=mode) | dict(max_steps=100000), 2)
    wait_for(running, "'loss'")
    running.ranks[1].kill()
    start = patient_time()
    finished = running.wait(timeout=LIMIT)
    assert patient_time() - start < LIMIT
    assert finished.statuses[0] == 1, finished.text
    said_once(finished)
    assert re.search(r"error: Step \d+: ", finished.texts[0]), finished.texts[0]
    assert not leftovers(running.output_dir)
    assert not (running.output_dir / "model.safetensors").exists()


def all_gone(pids):
    """They are, or will be in a moment: whoever has lost its parent is there until another one has asked how it ended."""
    end = patient_time() + LIMIT + START
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids) and patient_time() < end:
        time.sleep(0.02)
    return not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_launched_rank_killed(settings):
    running = Running(settings(sequence_parallel_size=2, nproc_per_node=2) | dict(max_steps=100000))
    wait_for(running, "'loss'")
    workers = children_of(running.ranks[0].pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    finished = running.wait(timeout=LIMIT)
    assert finished.status in (1, 128 + signal.SIGKILL), finished.text
    assert "error: " in finished.text and "Traceback" not in finished.text, finished.text
    assert all_gone(workers)
    assert not leftovers(running.output_dir)


def test_interrupt_of_launched_ranks(settings):
    """As Ctrl-C does it: to torchrun and its workers together."""
    running = Running(settings(sequence_parallel_size=2, nproc_per_node=2) | dict(max_steps=100000),
                      preexec=os.setsid)
    wait_for(running, "'loss'")
    workers = children_of(running.ranks[0].pid)
    os.killpg(running.ranks[0].pid, signal.SIGINT)
    finished = running.wait(timeout=LIMIT)
    assert finished.status == 130, finished.text
    assert finished.text.count("Interrupted") == 1 and "Traceback" not in finished.text
    assert all_gone(workers)
    assert not leftovers(running.output_dir)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_interrupt_in_a_step_of_minutes(num_ranks, settings, tmp_path):
    folder = tmp_path / "data"
    add_dataset(folder, "chats", [dict(instruction="a " * 250, input="", output="b " * 250)], num_samples=1000)
    running = Running(settings(sequence_parallel_size=num_ranks, dataset_dir=str(folder))
                      | dict(gradient_accumulation_steps=1000), num_ranks)
    wait_for(running, "Output")
    time.sleep(1)
    for rank in running.ranks:
        rank.send_signal(signal.SIGINT)
    finished = running.wait(timeout=LIMIT)
    assert set(finished.statuses) == {130}, finished.text
    assert finished.text.count("Interrupted") == 1


@pytest.mark.parametrize("launched", [dict(), dict(nproc_per_node=2, sequence_parallel_size=2)])
def test_nohup(launched, settings):
    """The terminal goes, the run stays."""
    running = Running(settings(**launched) | dict(max_steps=100000),
                      preexec=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for(running, "'loss'")
    pids = [running.ranks[0].pid, *children_of(running.ranks[0].pid)]
    for pid in pids:
        os.kill(pid, signal.SIGHUP)
    time.sleep(1)
    seen, end = running.text(), time.monotonic() + LIMIT
    while len(running.text()) == len(seen) and time.monotonic() < end:
        time.sleep(0.1)
    assert len(running.text()) > len(seen) and running.ranks[0].poll() is None
    running.ranks[0].send_signal(signal.SIGINT)
    assert running.wait(timeout=LIMIT).status == 130


def test_interrupt_names_the_last_checkpoint(settings):
    running = Running(settings() | dict(max_steps=100000, save_strategy="steps", save_steps=1,
                                        save_total_limit=1, gradient_accumulation_steps=1))
    wait_for(running, "Saved")
    running.ranks[0].send_signal(signal.SIGINT)
    finished = running.wait(timeout=LIMIT)
    assert finished.status == 130
    assert re.search(r"The last checkpoint is .*/checkpoint-\d+\.", finished.text), finished.text


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_interrupt(num_ranks, settings):
    running = Running(settings(sequence_parallel_size=num_ranks) | dict(max_steps=100000), num_ranks)
    wait_for(running, "'loss'")
    for rank in running.ranks:
        rank.send_signal(signal.SIGINT)
    finished = running.wait(timeout=LIMIT)
    assert set(finished.statuses) == {130}, finished.text
    assert finished.text.count("Interrupted") == 1
    assert not leftovers(running.output_dir)
    assert not (running.output_dir / "model.safetensors").exists()


def test_interrupt_of_one_rank_ends_all(settings):
    running = Running(settings(sequence_parallel_size=2) | dict(max_steps=100000), 2)
    wait_for(running, "'loss'")
    running.ranks[1].send_signal(signal.SIGINT)
    finished = running.wait(timeout=LIMIT)
    assert set(finished.statuses) == {130}, finished.text


def test_a_second_interrupt_ends_at_once_and_leaves_no_folder(settings):
    """Signals fall into a stream of saves: whatever stands under a final name is whole."""
    from safetensors.torch import load_file

    running = Running(settings() | dict(max_steps=100000, save_strategy="steps", save_steps=1,
                                        save_total_limit=2))
    wait_for(running, "Saved")
    for _ in range(2):
        running.ranks[0].send_signal(signal.SIGINT)
    finished = running.wait(timeout=LIMIT)
    assert finished.status == 130, finished.text
    assert not leftovers(running.output_dir)
    for folder in running.output_dir.glob("checkpoint-*"):
        assert load_file(folder / "model.safetensors")
        assert (folder / "trainer_state.json").exists()


@pytest.mark.parametrize("keys", [dict(), dict(save_strategy="steps", save_steps=1)])
def test_disk_full_while_saving(keys, settings):
    """As on a full disk, writes beyond so many bytes of a file fail: the model's weights, but not its header too."""
    settings = settings(sequence_parallel_size=2, **keys)
    limit = bytes_of_weights(settings["model_name_or_path"])

    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    running = Running(settings, 2, preexec=small_files_only)
    finished = running.wait(timeout=30)
    assert set(finished.statuses) == {1}, finished.text
    said_once(finished)
    assert "model.safetensors" in finished.texts[0] and "space" in finished.texts[0]
    names = {path.name for path in running.output_dir.iterdir()}
    assert names <= {"trainer_log.jsonl"}, names
