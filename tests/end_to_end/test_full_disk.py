"""What is trained is not lost when a disk is full, and what will not fit is said before the first step."""

import errno
import re
import resource
import signal
import time

import pytest
from conftest import Running, bytes_of_weights, settings_of
from faults import wait_for
from full_disk import full_disk, shim  # noqa: F401 (fixtures)

TIMEOUT = 2  # ddp_timeout: waiting for room is not counted


@pytest.fixture
def settings(models, data, tmp_path):
    def make(**keys):
        return settings_of(models["llama"], data, tmp_path / "run", max_steps=3, ddp_timeout=TIMEOUT) | keys
    return make


def weights(folder):
    from safetensors.torch import load_file
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


def same_weights(left, right):
    import torch
    left, right = weights(left), weights(right)
    assert left.keys() == right.keys() and left
    assert all(torch.equal(left[name], right[name]) for name in left)


# Where states are divided all ranks write, and one of them finds the disk full.
LAYOUTS = [(1, dict()), (2, dict(zero_stage=3, FULL_RANK=1)), (2, dict(finetuning_type="lora"))]


def split(keys):
    return {k: v for k, v in keys.items() if k.islower()}, {k: v for k, v in keys.items() if k.isupper()}


@pytest.mark.parametrize("num_ranks, keys", LAYOUTS)
def test_the_model_waits_for_room(num_ranks, keys, settings, full_disk, tmp_path):
    keys, variables = split(keys)
    flag = tmp_path / "full"
    flag.touch()
    full_disk(".model.partial", FULL_FLAG=flag, **variables)
    running = Running(settings(**keys), num_ranks)
    wait_for(running, "waits for room")
    begin = time.monotonic()
    while time.monotonic() < begin + 2 * TIMEOUT:
        assert all(rank.poll() is None for rank in running.ranks), running.text()
        time.sleep(0.1)
    assert not list(running.output_dir.glob("*.safetensors"))
    flag.unlink()
    run = running.wait()
    assert set(run.statuses) == {0}, run.text
    text = run.text
    assert text.count("waits for room") == 1 and "no checkpoint has been saved" in text, text
    assert "No space left on device" in text and ".model.partial/" in text
    assert not [path for path in run.output_dir.iterdir() if path.name.startswith(".")]
    assert (run.output_dir / "train_results.json").exists() and (run.output_dir / "trainer_state.json").exists()
    undisturbed = Running(settings(output_dir=str(tmp_path / "undisturbed"), **keys), num_ranks).wait()
    same_weights(run.output_dir, undisturbed.output_dir)


@pytest.mark.parametrize("num_ranks, keys", LAYOUTS[:2])
def test_or_takes_another_folder(num_ranks, keys, settings, full_disk, tmp_path):
    keys, variables = split(keys)
    full_disk("run/.model.partial", **variables)
    other = tmp_path / "other" / "disk"
    run = Running(settings(fallback_output_dir=str(other), **keys), num_ranks).wait()
    assert set(run.statuses) == {0}, run.text
    [other] = other.iterdir()  # of this run alone
    assert f"Saved the model and logs in {other}\n" in run.text and f"{other} is tried" in run.text
    assert weights(other) and not weights(run.output_dir)
    assert {"config.json", "trainer_log.jsonl", "trainer_state.json", "train_results.json"} <= {p.name for p in other.iterdir()}
    assert (other / "trainer_log.jsonl").read_bytes().startswith((run.output_dir / "trainer_log.jsonl").read_bytes()[:200])
    refused = Running(settings(fallback_output_dir=str(other.parent), **keys), num_ranks).wait()
    assert refused.status == 1 and f"fallback_output_dir would be used as output_dir: output_dir {other} holds" in refused.text, refused.text


def test_runs_share_a_fallback(settings, full_disk, tmp_path):
    """A sweep: each run writes, goes on from and cleans what is its own."""
    other = tmp_path / "other"
    keys = settings(fallback_output_dir=str(other), save_total_limit=1, max_steps=100000)
    del keys["output_dir"]

    def stopped(name):
        full_disk(f"/{name}/.checkpoint-")
        running = Running(keys | dict(output_dir=str(tmp_path / name)))
        wait_for(running, "'loss'")
        running.ranks[0].send_signal(signal.SIGTERM)
        run = running.wait()
        full_disk()
        found = re.search(r"saved (\S+/checkpoint-(\d+))\. The same command goes on", run.text)
        assert run.status == 0 and found and "Going on" not in run.text, run.text
        return found[1], int(found[2])
    first, step = stopped("a")
    leftover = other / first.split("/")[-2] / ".checkpoint-7.partial"
    leftover.mkdir()
    second, _ = stopped("b")
    assert sorted(str(path) for path in other.glob("*/checkpoint-*")) == sorted([first, second]) and leftover.exists()
    # By name, too; and one that was about to be replaced has its name again.
    hidden = other / first.split("/")[-2] / f".checkpoint-{step}.replaced"
    (other / first.split("/")[-2] / f"checkpoint-{step}").rename(hidden)
    again = Running(keys | dict(output_dir=str(tmp_path / "a"), resume_from_checkpoint=first, max_steps=step + 1)).wait()
    assert again.status == 0 and f"Going on from {first}, step {step} of {step + 1}" in again.text, again.text
    assert not leftover.exists() and not hidden.exists()


def test_a_report_does_not_write_the_model_again(settings, full_disk, tmp_path):
    flag = tmp_path / "full"
    flag.touch()
    full_disk("train_results.json", FULL_FLAG=flag)
    running = Running(settings())
    wait_for(running, "waits for room")
    text, output_dir = running.text(), running.output_dir
    assert f"the model is in {output_dir}" in text and "the model could not" not in text and "MiB" not in text.split("It takes")[1], text
    before = (output_dir / "model.safetensors").stat()
    flag.unlink()
    run = running.wait()
    after = (output_dir / "model.safetensors").stat()
    assert run.status == 0 and (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), run.text
    assert (output_dir / "train_results.json").exists()
    flag.touch()
    running = Running(settings(output_dir=str(tmp_path / "given_up")))
    wait_for(running, "waits for room")
    running.ranks[0].send_signal(signal.SIGINT)
    run = running.wait()
    assert run.status == 130 and f"the model is in {tmp_path / 'given_up'}, and its logs and results were given up" in run.text, run.text


RECORD = {"trainer_log.jsonl", "trainer_state.json", "train_results.json", "training_loss.png"}


def test_a_report_takes_another_folder(settings, full_disk, tmp_path):
    """Where the disk has room for the model, and none for its logs and results."""
    full_disk("run/.longspan-train_results.json")
    other = tmp_path / "other"
    run = Running(settings(fallback_output_dir=str(other), plot_loss=True), 2).wait()
    assert set(run.statuses) == {0}, run.text
    [other] = other.iterdir()  # of this run alone
    assert f"Saved the model in {run.output_dir}, and its logs and results in {other}\n" in run.text, run.text
    assert weights(run.output_dir) and not weights(other) and RECORD <= {path.name for path in other.iterdir()}
    assert "waits for room" not in run.text and f"{other} is tried" in run.text
    # The next run with this output_dir does not write over either.
    full_disk()
    refused = Running(settings(fallback_output_dir=str(other.parent)), 2).wait()
    assert refused.status == 1 and "overwrite_output_dir" in refused.text, refused.text


def test_a_picture_is_no_reason_to_fail(settings, full_disk):
    full_disk("training_loss.png")
    run = Running(settings(plot_loss=True)).wait()
    assert run.status == 0 and weights(run.output_dir) and (run.output_dir / "train_results.json").exists(), run.text
    assert re.search(r"warning: Cannot write \S*training_loss.png", run.text) and not (run.output_dir / "training_loss.png").exists()


def test_a_disk_that_breaks_on_the_way(settings, full_disk, tmp_path):
    """Not full, but gone (EIO): log lines wait, the model goes to the fallback, and waits for that one."""
    flag, other = tmp_path / "broken", tmp_path / "other"
    full_disk("/run/", ALSO_MATCH="other/", FULL_FLAG=flag, FULL_ERRNO=errno.EIO)
    running = Running(settings(fallback_output_dir=str(other), max_steps=100, logging_steps=1))
    wait_for(running, "'loss'")
    flag.touch()
    wait_for(running, "waits for room")
    flag.unlink()
    run = running.wait()
    [own] = other.iterdir()
    assert run.status == 0 and f"Saved the model and logs in {own}\n" in run.text, run.text
    assert run.text.count("The run goes on, and the next line") == 1 and "Input/output error" in run.text, run.text
    assert weights(own) and len((own / "trainer_log.jsonl").read_text().splitlines()) == 101 and not weights(run.output_dir)


def test_a_fallback_that_is_full_too(settings, full_disk, tmp_path):
    flag = tmp_path / "full"
    flag.touch()
    full_disk(".model.partial", FULL_FLAG=flag)
    running = Running(settings(fallback_output_dir=str(tmp_path / "other")))
    wait_for(running, "in one of both folders")
    flag.unlink()
    run = running.wait()
    assert run.status == 0 and weights(run.output_dir) and not (tmp_path / "other").exists(), run.text


def test_other_failures_take_the_fallback_too(settings, tmp_path):
    """A limit of file sizes is no full disk, and does not pass: it is told, or another folder taken. This one is too
    small by the header of the file."""
    keys = settings()
    limit = bytes_of_weights(keys["model_name_or_path"])

    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run = Running(settings(fallback_output_dir=str(tmp_path / "other")), 1, preexec=small_files_only).wait()
    assert run.status == 1 and f"warning: the model could not be saved in {tmp_path / 'other' / 'run-'}" in run.text, run.text
    assert run.text.count("error: ") == 1 and "File too large" in run.text


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_files_that_may_not_be_large_enough_are_told_of_before_the_first_step(num_ranks, settings):
    def small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    run = Running(settings(), num_ranks, preexec=small_files_only).wait()
    assert set(run.statuses) == {1} and "none larger than 97.7 KiB (ulimit -f)" in run.text, run.text
    assert "'loss'" not in run.text and run.text.count("error: ") == 1, run.text


@pytest.mark.parametrize("num_ranks, keys", LAYOUTS[:2])
def test_training_goes_on_without_a_checkpoint(num_ranks, keys, settings, full_disk, tmp_path):
    """One on the way is left out, said, and saved as soon as there is room."""
    keys, variables = split(keys)
    full_disk(".checkpoint-4.partial", **variables)
    keys |= dict(save_strategy="steps", save_steps=2, max_steps=6)
    run = Running(settings(**keys), num_ranks).wait()
    assert set(run.statuses) == {0}, run.text
    assert run.text.count("warning: checkpoint-4 is not saved") == 1, run.text
    assert re.search(r"\. \S*checkpoint-2 is whole\. Later steps save", run.text), run.text
    assert sorted(path.name for path in run.output_dir.glob("checkpoint-*")) == [
        "checkpoint-2", "checkpoint-5", "checkpoint-6"]
    full_disk()
    undisturbed = Running(settings(output_dir=str(tmp_path / "undisturbed"), **keys), num_ranks).wait()
    same_weights(run.output_dir, undisturbed.output_dir)


def test_a_stop_on_a_full_disk_saves_elsewhere(settings, full_disk, tmp_path):
    full_disk("run/.checkpoint-")
    keys = settings(fallback_output_dir=str(tmp_path / "other"), max_steps=100000)
    running = Running(keys, 2)
    wait_for(running, "'loss'")
    running.ranks[0].send_signal(signal.SIGTERM)
    run = running.wait()
    assert set(run.statuses) == {0}, run.text
    step = int(re.search(r"Stopped after step (\d+) of", run.text)[1])
    [other] = (tmp_path / "other").iterdir()
    assert f"saved {other / f'checkpoint-{step}'}. The same command goes on" in run.text, run.text
    full_disk()
    again = Running(keys | dict(max_steps=step + 1), 2).wait()
    assert again.status == 0 and f"{other}/checkpoint-{step}, step {step} of {step + 1}" in again.text, again.text


@pytest.mark.parametrize("number, keys, kept, told", [
    (signal.SIGINT, dict(), "no checkpoint has been saved", [0, 1]),
    (signal.SIGTERM, dict(), "no checkpoint has been saved", [0, 1]),
    (signal.SIGUSR1, dict(save_strategy="steps", save_steps=2), "checkpoint-2", [0, 1]),
    (signal.SIGTERM, dict(), "no checkpoint has been saved", [1]),
    (signal.SIGINT, dict(), "no checkpoint has been saved", [1]),
])
def test_waiting_can_be_given_up(number, keys, kept, told, settings, full_disk):
    """By a signal to any of them."""
    full_disk(".model.partial")
    running = Running(settings(**keys), 2)
    wait_for(running, "waits for room")
    for rank in told:
        running.ranks[rank].send_signal(number)
    run = running.wait(timeout=20)
    assert set(run.statuses) == {130} and kept in run.text and "was given up" in run.text, run.text


def test_a_stop_that_comes_to_one_after_the_other(settings, full_disk, tmp_path):
    """It is one stop: the checkpoint that the first signal asks for waits for room, whoever else is told meanwhile."""
    flag = tmp_path / "full"
    flag.touch()
    full_disk(".checkpoint-", FULL_FLAG=flag)
    running = Running(settings(max_steps=100000), 2)
    wait_for(running, "'loss'")
    running.ranks[1].send_signal(signal.SIGTERM)
    wait_for(running, "waits for room")
    running.ranks[0].send_signal(signal.SIGTERM)
    time.sleep(2)  # in which rank 0 has looked several times
    flag.unlink()
    run = running.wait()
    assert set(run.statuses) == {0} and run.text.count("Stopped after step") == 1, run.text
    assert len(list(run.output_dir.glob("checkpoint-*"))) == 1


@pytest.mark.parametrize("keys", [dict(), dict(bf16=True), dict(optim="adamw_8bit"), dict(finetuning_type="lora"),
                                  dict(save_only_model=True)])
def test_the_account_is_what_is_written(keys, settings):
    run = Running(settings(max_steps=1, save_strategy="epoch", **keys)).wait()
    said = re.search(r"Disk: the model takes ([\d.]+) (\wiB), 1 checkpoint ([\d.]+) (\wiB)", run.text)
    unit = dict(KiB=2**10, MiB=2**20)
    for number, name, folder in ((said[1], said[2], run.output_dir), (said[3], said[4], run.output_dir / "checkpoint-1")):
        state = folder.glob("training_state/*") if folder.name.startswith("checkpoint") else []
        written = sum(path.stat().st_size for path in [*folder.glob("*.safetensors"), *state, folder / "tokenizer.json"])
        # Headers of safetensors: less than 256 bytes for each tensor.
        difference = written - float(number) * unit[name]
        assert abs(difference) < 0.06 * unit[name] + 256 * 100, (written, number, name)


def test_what_does_not_fit_is_said_before_the_first_step(settings, full_disk, tmp_path):
    keys = dict(save_strategy="steps", save_steps=1, max_steps=5)
    size = int(Running(settings(max_steps=1)).wait().output_dir.joinpath("model.safetensors").stat().st_size)
    full_disk(FREE_BYTES=size // 2)
    refused = Running(settings(output_dir=str(tmp_path / "refused"), **keys), 2).wait()
    assert set(refused.statuses) == {1} and refused.text.count("error: ") == 1, refused.text
    assert "The trained model takes" in refused.text and "'loss'" not in refused.text
    assert not (tmp_path / "refused").exists()
    full_disk(FREE_BYTES=size * 10)
    warned = Running(settings(output_dir=str(tmp_path / "warned"), **keys)).wait()
    assert warned.status == 0 and "warning: that is not enough" in warned.text, warned.text
    assert "save_total_limit: " in warned.text and "Quotas of a user or a folder cannot be seen" in warned.text


def test_folders_are_tried_before_anything_else(settings, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "file" / "below")
    (tmp_path / "chats.json").write_text("[{]")  # broken, too
    (tmp_path / "dataset_info.json").write_text('{"chats": {"file_name": "chats.json"}}')
    for keys, message in ((dict(output_dir=str(tmp_path / "nowhere")), "error: output_dir "),
                          (dict(fallback_output_dir=str(tmp_path / "file" / "below")), "error: fallback_output_dir "),
                          (dict(fallback_output_dir=str(tmp_path / "run")), "is output_dir")):
        run = Running(settings(dataset_dir=str(tmp_path), **keys)).wait()
        assert run.status == 1 and message in run.text and "chats.json" not in run.text, run.text
        assert not (tmp_path / "run").exists()
