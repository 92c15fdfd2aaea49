"""Lost ranks, cut networks, numbers that are none, disks and memory that run out: every process that is left ends
in time and says why, and what was saved before stays whole."""

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

import pytest
from conftest import PROGRAM, Running, add_dataset, settings_of, write_dataset
from device import hosts_wait
from faults import TORCHRUN, Launched, children_of, is_alive, processes_with, wait_for, write_config
from patience import let_pass, patient_time
from safetensors.torch import load_file, save_file

TIMEOUT = 4  # ddp_timeout
MARGIN = 12 if hosts_wait() else 24  # seconds more for the diagnosis; where no host waits, its heartbeat ends a process
ENDLESS = dict(max_steps=100000, ddp_timeout=TIMEOUT, gradient_accumulation_steps=1)


@pytest.fixture
def settings(models, data, tmp_path):
    def make(name="run", **changes):
        return settings_of(models["llama"], data, tmp_path / name) | changes
    return make


def ended(running, but=(), seconds=TIMEOUT + MARGIN):
    """All ranks but these have ended; their statuses and texts."""
    end = patient_time() + seconds
    ranks = [rank for rank in range(len(running.ranks)) if rank not in but]
    while any(running.ranks[rank].poll() is None for rank in ranks):
        assert patient_time() < end, running.text()
        time.sleep(0.05)
    return {rank: (running.ranks[rank].returncode, running.logs[rank].read_text()) for rank in ranks}


def says_who(text, rank, pid, *words):
    assert ("error: Step " if hosts_wait() else "error: Rank ") in text, text
    assert f"Rank {rank} (host {socket.gethostname()}, process {pid})" in text, text
    assert "in step " in text, text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize("sequence_size", [1, 4])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank(victim, sequence_size, settings):
    running = Running(settings(**ENDLESS, sequence_parallel_size=sequence_size), 4)
    wait_for(running, "'loss'")
    let_pass(0.6)  # signs of life go out a few times a second
    running.ranks[victim].kill()
    for status, text in ended(running, [victim]).values():
        assert status == 1, text
        says_who(text, victim, running.ranks[victim].pid, "has ended without a word")
    running.wait()


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 3])
def test_a_stopped_rank(victim, settings):
    running = Running(settings(**ENDLESS, sequence_parallel_size=2), 4)
    wait_for(running, "'loss'")
    let_pass(0.6)
    running.ranks[victim].send_signal(signal.SIGSTOP)
    start = time.monotonic()
    for status, text in ended(running, [victim]).values():
        assert status == 1, text
        says_who(text, victim, running.ranks[victim].pid, "is stopped")
    assert time.monotonic() - start > TIMEOUT - 1  # a rank may be slow for less
    running.ranks[victim].send_signal(signal.SIGCONT)
    ended(running)


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_worker_of_a_launcher(victim, settings):
    """The other one says it in time; the launcher ends the one that cannot end itself."""
    running = Running(settings(**ENDLESS, nproc_per_node=2))
    wait_for(running, "'loss'")
    workers = children_of(running.ranks[0].pid)
    assert len(workers) == 2
    let_pass(0.6)
    os.kill(workers[victim], signal.SIGSTOP)
    end = patient_time() + TIMEOUT + MARGIN
    while is_alive(workers[1 - victim]):
        assert patient_time() < end, running.text()
        time.sleep(0.05)
    says_who(running.text(), victim, workers[victim], "is stopped")
    finished = running.wait(timeout=45)  # torchrun's patience with it is 30 seconds
    assert finished.status == 1 and "Traceback" not in finished.text, finished.text
    while any(is_alive(pid) for pid in workers):  # what is killed is there for a moment
        assert patient_time() < end + 45, workers
        time.sleep(0.05)


def test_a_short_stop_is_no_failure(settings):
    running = Running(settings(**ENDLESS), 2)
    wait_for(running, "'loss'")
    running.ranks[1].send_signal(signal.SIGSTOP)
    time.sleep(TIMEOUT / 2)
    running.ranks[1].send_signal(signal.SIGCONT)
    seen = running.text()
    time.sleep(TIMEOUT)
    assert len(running.text()) > len(seen) and all(rank.poll() is None for rank in running.ranks)
    running.ranks[0].terminate()
    assert set(running.wait(timeout=20).statuses) == {0}


def test_a_rank_out_of_memory(settings):
    """It says which keys help, and the others quote it."""
    running = Running(settings(**ENDLESS), 2)
    wait_for(running, "'loss'")
    resource.prlimit(running.ranks[1].pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    (_, first), (_, second) = (value for _, value in sorted(ended(running).items()))
    assert "error: rank 1: out of memory" in second and "sequence_parallel_size" in second, second
    for word in ("zero_stage", "offload_optimizer", "offload_activations", "tiled_mlp"):
        assert word in second, second
    assert "Rank 1 (host" in first and "out of memory" in first, first


def test_out_of_memory_alone(settings):
    running = Running(settings(**ENDLESS))
    wait_for(running, "'loss'")
    resource.prlimit(running.ranks[0].pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    finished = running.wait(timeout=10)
    assert finished.status == 1 and "error: out of memory" in finished.text, finished.text
    assert "tiled_mlp" in finished.text, finished.text


# Two machines.


@contextlib.contextmanager
def two_machines():
    """Two network namespaces with a cable between them."""
    names = [f"longspan-{os.getpid()}-{side}" for side in "ab"]

    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "lsa", "netns", names[0], "type", "veth", "peer", "name", "lsb", "netns", names[1])
            for number, name in enumerate(names):
                ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "ls" + "ab"[number])
                ip("-n", name, "link", "set", "ls" + "ab"[number], "up")
                ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', '') or error}")
        yield names, lambda: ip("-n", names[0], "link", "set", "lsa", "down")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def on_two_machines(names, settings):
    config = write_config(settings)
    running = Launched([["ip", "netns", "exec", name, TORCHRUN, "--no-python", "--nnodes=2", f"--node-rank={number}",
                      "--nproc-per-node=2", "--master-addr=10.77.0.1", "--master-port=29533", PROGRAM, "train",
                      config] for number, name in enumerate(names)], settings["output_dir"])
    running.config = config
    return running


@pytest.mark.long
def test_a_cut_network(settings):
    with two_machines() as (names, cut):
        running = on_two_machines(names, settings(**ENDLESS, sequence_parallel_size=2))
        wait_for(running, "'loss'")
        workers = running.workers()
        assert len(workers) == 4
        cut()
        start = patient_time()
        while any(os.path.exists(f"/proc/{pid}/exe") for pid in workers):
            assert patient_time() - start < TIMEOUT + MARGIN, running.text()
            time.sleep(0.05)
        assert not running.workers() and not processes_with(running.config)  # none new, no orphan
        for launcher in running.ranks:  # torchrun itself may wait for its other half
            launcher.terminate()
        running.wait(timeout=60)
        first, second = (log.read_text() for log in running.logs)
        assert "error: Step " in first and "is silent" in first and "Rank 2 (host" in first, first
        assert "error: Step " in second and "10.77.0.1:29533" in second and "network" in second, second
        assert "Rank 0 (host" in second, second


def test_two_machines_train(settings):
    """The cable holds: the same run as on one machine."""
    keys = dict(max_steps=4, gradient_accumulation_steps=1, sequence_parallel_size=2)
    with two_machines() as (names, _):
        finished = on_two_machines(names, settings("two", **keys)).wait(timeout=90)
    assert finished.status == 0, finished.text
    one = Running(settings("one", **keys), 4).wait()
    assert one.logged("loss") == finished.logged("loss")


# kill -9.


LORA = dict(finetuning_type="lora", lora_dropout=0.1)


@pytest.mark.long
@pytest.mark.parametrize("num_ranks, num_kills, keys", [
    (1, 15, LORA), (2, 4, LORA), (2, 5, dict(zero_stage=3)), (2, 4, dict(zero_stage=3) | LORA)])
def test_kills(num_ranks, num_kills, keys, models, tmp_path):
    """At random moments, mostly while something is being saved: each run goes on, nothing older than the last save
    is lost, and in the end it is the run that was never killed."""
    folder = tmp_path / "data"
    write_dataset(folder, num_rows=12, shortest=3, longest=10)
    settings = settings_of(models["llama"], folder, tmp_path / "killed", save_strategy="steps", save_steps=2,
                           save_total_limit=2, max_steps=5 * num_kills, gradient_accumulation_steps=1,
                           **keys)
    rng = random.Random(5)
    output = tmp_path / "killed"

    def steps_done():
        with contextlib.suppress(OSError, IndexError):
            return json.loads((output / "trainer_log.jsonl").read_text().rpartition("\n")[0].splitlines()[-1])["current_steps"]
        return 0

    done, starts = 0, []
    for kill in range(num_kills):
        running = Running(settings, num_ranks)
        if kill % 5 == 4:
            time.sleep(rng.uniform(0, 1))
        else:
            wait_for(running, "Output ")
            wanted, end = done + rng.randint(0, 4), patient_time() + 60
            while steps_done() < wanted and patient_time() < end:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.1))
        for rank in running.ranks:
            rank.kill()
        for rank in running.ranks:
            rank.wait()
        text = running.logs[0].read_text()
        assert "error:" not in text and "broken" not in text, text
        if "Going on from" in text:
            start = int(text.partition(", step ")[2].split()[0])
            assert done - start <= 2, (done, start)
            starts.append(start)
        elif "Output " in text:
            assert done <= 2, text
        done = steps_done()
    assert len(set(starts)) > num_kills / 4, starts  # it moved
    finished = Running(settings, num_ranks).wait()
    assert finished.status == 0, finished.text
    whole = Running(settings | dict(output_dir=str(tmp_path / "whole")), num_ranks).wait()
    assert [entry["step"] for entry in finished.history] == [entry["step"] for entry in whole.history]
    assert finished.logged("loss") == whole.logged("loss")
    weights = [{path.name: path.read_bytes() for path in run.output_dir.glob("*.safetensors")}
               for run in (finished, whole)]
    assert weights[0] == weights[1] and len(weights[0]) == (1 if "finetuning_type" in keys else num_ranks)
    assert not [path for path in output.iterdir() if path.name.startswith(".")]


# Numbers that are none.


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def broken_model(models, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(models["llama"], folder)
    return folder


def overflow(weights):
    """Finite losses, and gradients beyond fp32. The last norm passes on little but its first number, some 2e-38 times
    the root of the width, to which the head gives weights of 2e38, negative for every other token. Where such a token is
    the label, the gradient there is the mean of the others' weights less its own: 4e38."""
    weights["model.embed_tokens.weight"][:, 0] = 100.0
    weights["model.norm.weight"][0] = 2e-38
    weights["lm_head.weight"][0::2, 0] = 2e38
    weights["lm_head.weight"][1::2, 0] = -2e38


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_gradients_that_are_infinite_are_named(num_ranks, settings, broken_model):
    change_weights(broken_model, overflow)
    run = Running(settings(model_name_or_path=str(broken_model)), num_ranks).wait()
    assert set(run.statuses) == {1}, run.text
    assert re.search(r"The gradient norm of step 1 is (nan|inf)\. It comes from the gradient of model\.", run.text), run.text
    assert run.text.count("error:") == 1
    # What the step has seen: each row's own loss, as one process finds it.
    rows = re.search(r"The step saw row ([\d, ]+) of the training set \(counted from 0\), own loss ([\d., ]+)\.", run.text)
    assert rows, run.text
    losses = [float(loss) for loss in rows[2].split(", ")]
    assert len(losses) == len(rows[1].split(", ")) and losses == sorted(losses, reverse=True)
    assert "The learning rate is 0.001." in run.text


def test_endless_skipping_ends(settings, broken_model):
    change_weights(broken_model, overflow)
    run = Running(settings(model_name_or_path=str(broken_model), on_nonfinite="skip", max_steps=100)).wait()
    assert run.status == 1 and "21 steps in a row" in run.text, run.text


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_skipped_step_changes_nothing(num_ranks, settings, broken_model, tmp_path):
    """As if the row had never been there; the count is logged and survives a restart."""
    change_weights(broken_model, lambda w: w["model.embed_tokens.weight"][0].fill_(float("nan")))
    texts = [f"question {i}" for i in range(4 * num_ranks)]
    folders = {}
    for name, rows in (("with", texts[:num_ranks] + ["<|endoftext|>"] * num_ranks + texts[num_ranks:]),
                       ("without", texts)):
        folders[name] = tmp_path / name
        add_dataset(folders[name], "chats", [dict(instruction=q, input="", output="an answer") for q in rows])
    keys = dict(model_name_or_path=str(broken_model), disable_shuffling=True, gradient_accumulation_steps=1,
                lr_scheduler_type="constant", on_nonfinite="skip", save_strategy="steps", save_steps=3)
    skipped = Running(settings("a", dataset_dir=str(folders["with"]), **keys, max_steps=5), num_ranks).wait()
    assert set(skipped.statuses) == {0}, skipped.text
    assert skipped.text.count("warning: The loss of step 2 is nan") == 1
    assert f"from row {', '.join(str(num_ranks + i) for i in range(num_ranks))} of the training set" in skipped.text
    without = Running(settings("b", dataset_dir=str(folders["without"]), **keys, max_steps=4), num_ranks).wait()
    assert skipped.logged("loss") == without.logged("loss")
    weights = [(run.output_dir / "model.safetensors").read_bytes() for run in (skipped, without)]
    assert weights[0] == weights[1]
    entries = [entry for entry in skipped.history if "learning_rate" in entry]
    assert [entry.get("skipped_steps", 0) for entry in entries] == [0, 1, 1, 1, 1]
    assert ["loss" in entry for entry in entries] == [True, False, True, True, True]
    shutil.copytree(skipped.output_dir / "checkpoint-3", tmp_path / "c" / "checkpoint-3")
    again = Running(settings("c", dataset_dir=str(folders["with"]), **keys, max_steps=5), num_ranks).wait()
    assert [entry.get("skipped_steps", 0) for entry in again.history if "learning_rate" in entry] == [0, 1, 1, 1, 1]


# Disks.


@contextlib.contextmanager
def mounted(folder, options):
    """A disk of its own, over what is there."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_full_disk(num_ranks, settings, tmp_path):
    """A real one (test_full_disk.py has the cases, on one that is only said to be full): checkpoints are left out, the
    model waits until somebody makes room."""
    with mounted(tmp_path / "disk", "size=8m") as disk:
        (disk / "out").mkdir()
        (tmp_path / "run").symlink_to(disk / "out")  # what the run says goes beside output_dir
        keys = settings(output_dir=str(tmp_path / "run"), save_strategy="steps", save_steps=1, max_steps=12)
        running = Running(keys, num_ranks)
        wait_for(running, "is not saved")
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        wait_for(running, "the run waits for room")
        text = running.text()
        assert "warning: that is not enough" in text and "Later steps save a checkpoint" in text, text
        saved = sorted(running.output_dir.glob("checkpoint-*"))
        assert saved and [path.name for path in running.output_dir.iterdir() if path.name.startswith(".")] == [".longspan-lock"]
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        run = running.wait(timeout=60)
        assert set(run.statuses) == {0} and "error:" not in run.text, run.text
        assert (run.output_dir / "model.safetensors").exists() and sorted(run.output_dir.glob("checkpoint-*")) == saved
        # Those that were saved are whole: a run goes on from the last one.
        (run.output_dir / "model.safetensors").unlink()
        again = Running(keys, num_ranks).wait(timeout=60)
        assert again.status == 0 and f"step {len(saved)} of 12" in again.text, again.text
        assert (run.output_dir / "model.safetensors").exists()


def test_a_disk_that_becomes_read_only(settings, tmp_path):
    keys = settings(save_strategy="steps", save_steps=10, max_steps=100000)
    running = Running(keys, 2)
    wait_for(running, "Saved")
    with mounted(running.output_dir, "ro"):
        run = running.wait(timeout=30)
        assert set(run.statuses) == {1}, run.text
        assert run.text.count("error:") == 1 and "Read-only file system" in run.text, run.text
        refused = Running(keys, 2).wait(timeout=30)
        assert set(refused.statuses) == {1} and "Choose a folder that you may write to" in refused.text, refused.text
    again = Running(keys | dict(max_steps=50), 2).wait(timeout=60)
    assert again.status == 0 and "Going on from" in again.text, again.text
