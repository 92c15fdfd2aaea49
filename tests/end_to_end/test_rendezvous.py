"""How processes meet, and what becomes of a run when what they met through is gone: ports that are taken or none,
servers that say nothing, launchers that are killed, limits of the system."""

import contextlib
import ctypes
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import PROGRAM, ROOT, Running, free_port, settings_of
from faults import TORCHRUN, Launched, children_of, is_alive, wait_for, write_config
from held_meetings import before_meeting, held_meetings  # noqa: F401
from patience import patient_time
from safetensors.torch import load_file
from test_slow_disk import slow_disk  # noqa: F401

LIMIT = 90  # seconds in which whatever ends in some has ended, on a machine that has much else to do


@pytest.fixture
def settings(models, data, tmp_path):
    def make(name="run", **changes):
        return settings_of(models["llama"], data, tmp_path / name, max_steps=2) | changes
    return make


@contextlib.contextmanager
def silent_server():
    """Takes connections on loopback and never says a word; its port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield server.getsockname()[1]


def started(settings, variables):
    """`longspan train` as somebody types it, with these variables."""
    return Running(settings, **{name: str(value) for name, value in variables.items()})


def ends_with_a_sentence(running, *words):
    """It is refused before anything is trained."""
    run = running.wait(timeout=LIMIT)
    assert run.status == 1, (run.status, run.text)
    assert run.text.startswith("error: ") and run.text.count("error: ") == 1 and "Traceback" not in run.text, run.text
    assert run.text.count("\n") == 1, run.text
    for word in words:
        assert word in run.text, run.text


# What is found out before anything is started.


NO_NAME = "x" * 64 + ".invalid"  # too long for any server of names to be asked about it


@pytest.mark.parametrize("variables, word", [
    (dict(MASTER_PORT=70000), "MASTER_PORT=70000 is no port"),
    (dict(MASTER_PORT=65536 + 29500), "is no port"),  # the last 16 bits are one
    (dict(RANK=1, WORLD_SIZE=2, MASTER_PORT=70000), "MASTER_PORT=70000 is no port"),
    (dict(MASTER_ADDR=NO_NAME), f"MASTER_ADDR={NO_NAME} has no address"),
    (dict(MASTER_ADDR="192.0.2.1"), "MASTER_ADDR=192.0.2.1 is another machine"),
], ids=["70000", "95036", "70000 of a rank", "no name", "another machine"])
def test_impossible_addresses(variables, word, settings, held_meetings):  # noqa: F811
    keys = dict() if "RANK" in variables else dict(nproc_per_node=2)
    ends_with_a_sentence(started(settings(**keys), variables | dict(LD_PRELOAD=held_meetings)), word)


def test_a_busy_port(settings):
    with silent_server() as port:
        ends_with_a_sentence(started(settings(nproc_per_node=2), dict(MASTER_PORT=port)), f"MASTER_PORT={port}",
                             "another program")
        run = started(settings(ddp_timeout=4), dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=2, RANK=0,
                                                    LOCAL_RANK=0)).wait(timeout=LIMIT)
        assert run.status == 1 and f"port {port} of this machine is not free" in run.text, run.text


def test_a_server_that_says_nothing(settings):
    """To a worker, and to the launcher of a second node."""
    with silent_server() as port:
        place = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        runs = [started(settings("worker", ddp_timeout=1), place | dict(RANK=1, WORLD_SIZE=2, LOCAL_RANK=0)),
                started(settings("node", ddp_timeout=1, nproc_per_node=1), place | dict(NNODES=2, NODE_RANK=1))]
        for run in runs:
            ends_with_a_sentence(run, f"127.0.0.1:{port} but does not answer as a torch store")


def test_a_stop_while_addresses_are_looked_at(settings):
    """Nothing was trained: it ends at once, not when the look does."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        server.settimeout(LIMIT)
        run = Running(settings(nproc_per_node=1), NNODES="2", NODE_RANK="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(server.getsockname()[1]))
        connection, _ = server.accept()  # it waits for a word now
        with connection:
            run.ranks[0].send_signal(signal.SIGTERM)
            ended = run.wait(timeout=LIMIT)
    assert ended.status == 0 and "Stopped before the first step (SIGTERM)" in ended.text, ended.text


def test_what_torchrun_cannot_do(settings):
    """One sentence of it, and the whole for who asks."""
    wrong = dict(PET_RDZV_BACKEND="nonsense")  # torchrun's own variable
    brief = started(settings("brief", nproc_per_node=2), wrong)
    whole = started(settings("whole", nproc_per_node=2), wrong | dict(LONGSPAN_DEBUG=1))
    ends_with_a_sentence(brief, "through torchrun", "nonsense")
    run = whole.wait(timeout=LIMIT)
    assert run.status == 1 and "Traceback" in run.text and "error: " in run.text, run.text


def test_nobody_asks_for_the_name_of_an_address(settings, held_meetings, tmp_path):  # noqa: F811
    """The thread that serves the store would answer nobody until a server of names has answered."""
    names = tmp_path / "names"
    run = Running(settings(), 2, LD_PRELOAD=str(held_meetings), NAMES_FILE=str(names)).wait(timeout=LIMIT)
    assert set(run.statuses) == {0}, run.text
    assert not names.exists(), names.read_text()


def test_ipv6(settings):
    """An address with and without brackets."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    runs = [started(settings("launched", nproc_per_node=2), dict(MASTER_ADDR="[::1]", MASTER_PORT=free_port()))]
    config = write_config(settings("direct"))
    place = dict(MASTER_ADDR="::1", MASTER_PORT=str(free_port()), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    commands = [["env", f"RANK={rank}", f"LOCAL_RANK={rank}", PROGRAM, "train", config] for rank in (0, 1)]
    runs.append(Launched(commands, settings("direct")["output_dir"], place))
    runs = [run.wait(timeout=LIMIT) for run in runs]
    for run in runs:
        assert set(run.statuses) == {0}, run.text
    assert runs[0].logged("loss") == runs[1].logged("loss")


# The launcher is gone.


@contextlib.contextmanager
def heir_of_orphans():
    """Processes whose parents are gone become children of this one, which may ask how they ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    subreaper = 36
    assert libc.prctl(subreaper, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(subreaper, 0, 0, 0, 0)


def statuses_of(pids, seconds, text):
    """As in heir_of_orphans: how these processes ended, in time."""
    statuses, end = {}, patient_time() + seconds
    try:
        while len(statuses) < len(pids):
            for pid in set(pids) - set(statuses):
                with contextlib.suppress(ChildProcessError):  # a moment before it is ours
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done == pid:
                        statuses[pid] = os.waitstatus_to_exitcode(status)
            assert patient_time() < end, text()
            time.sleep(0.02)
    finally:
        for pid in set(pids) - set(statuses):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return [statuses[pid] for pid in pids]


@pytest.mark.parametrize("keys", [dict(), dict(zero_stage=3)])
def test_a_launcher_killed_in_the_save(keys, slow_disk, settings, tmp_path):  # noqa: F811
    """The store goes with it. The workers meet without: a checkpoint has some ten meetings, of which each once took
    half a minute."""
    timeout, held = 40, tmp_path / "held"
    held.touch()
    with heir_of_orphans():
        running = started(settings(nproc_per_node=2, ddp_timeout=timeout, max_steps=100000, save_strategy="steps", save_steps=3,
                                   save_total_limit=1, gradient_accumulation_steps=1, **keys),
                          dict(LD_PRELOAD=slow_disk, SLOW_RANK=0, SLOW_WHILE_THERE=held))
        end = patient_time() + LIMIT
        while not list(running.output_dir.glob(".checkpoint-3.partial/.longspan-model*")):
            assert patient_time() < end and running.ranks[0].poll() is None, running.text()
            time.sleep(0.02)
        workers = children_of(running.ranks[0].pid)
        assert len(workers) == 2, running.text()
        running.ranks[0].kill()
        running.ranks[0].wait()
        held.unlink()
        assert statuses_of(workers, timeout, running.text) == [0, 0], running.text()
    text = running.text()
    assert text.count("Stopped after step 4 of 100000") == 1 and "error" not in text, text
    (checkpoint,) = running.output_dir.glob("checkpoint-*")
    assert checkpoint.name == "checkpoint-4"
    # It is whole: the run goes on from it.
    again = Running(settings(max_steps=5, gradient_accumulation_steps=2, **keys)).wait()
    assert again.status == 0 and "checkpoint-4, step 4 of 5" in again.text, again.text


def test_a_launcher_that_is_nobodys_parent(settings):
    """A shell stands between: the system tells the workers nothing. They find out, save and end as if told to stop."""
    keys = settings(max_steps=100000, gradient_accumulation_steps=1, ddp_timeout=40, disable_tqdm=True)
    command = [TORCHRUN, "--no-python", "--standalone", "--nproc-per-node=2", "sh", "-c", '"$@"; exit $?', "sh", PROGRAM,
               "train", write_config(keys)]
    running = Launched([command], keys["output_dir"])
    wait_for(running, "'loss'")
    workers = running.workers()
    assert len(workers) == 2
    running.ranks[0].kill()
    end = patient_time() + LIMIT
    while any(map(is_alive, workers)):
        assert patient_time() < end, running.text()
        time.sleep(0.05)
    running.ranks[0].wait()
    text = running.text()
    assert text.count("Stopped after step") == 1 and "(the launcher has ended)" in text and "error" not in text, text
    assert list(running.output_dir.glob("checkpoint-*"))


# The last instruction of a worker: one is killed, or one stops its launcher, for which the others wait.
LAST = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void last(void) {
  const char *rank = getenv("RANK"), *killed = getenv("KILLED_RANK"), *stopped = getenv("STOPPED_FILE");
  if (rank && killed && !strcmp(rank, killed)) raise(SIGKILL);
  if (rank && stopped && !strcmp(rank, "0")) {
    kill(getppid(), SIGSTOP);
    close(open(stopped, O_WRONLY | O_CREAT, 0600));
  }
  while (rank && stopped && access(stopped, F_OK) != 0) usleep(20000);
}

void _exit(int status) {
  last();
  ((void (*)(int))dlsym(RTLD_NEXT, "_exit"))(status);
  abort();
}
"""


@pytest.fixture
def on_two_nodes(settings, tmp_path):
    """Two launchers on loopback, each with one worker, whose last instructions are LAST's with these variables."""
    def start(timeout, **variables):
        (tmp_path / "last.c").write_text(LAST)
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "last.so", tmp_path / "last.c", "-ldl"], check=True)
        keys = settings(nproc_per_node=1, ddp_timeout=timeout)
        config = write_config(keys)
        place = dict(NNODES="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), LD_PRELOAD=str(tmp_path / "last.so"))
        return Launched([["env", f"NODE_RANK={node}", PROGRAM, "train", config] for node in (0, 1)], keys["output_dir"],
                        place | variables)
    return start


def test_pods_of_a_job_are_machines(settings):
    """Kubeflow's PyTorchJob: RANK counts pods, WORLD_SIZE processes, and no pod has a LOCAL_RANK."""
    config = settings(nproc_per_node=1)
    place = dict(PET_NNODES="2", PET_NPROC_PER_NODE="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                 MASTER_PORT=str(free_port()), KUBERNETES_SERVICE_HOST="10.96.0.1")
    run = Launched([["env", f"RANK={pod}", PROGRAM, "train", write_config(config)] for pod in (0, 1)],
                   config["output_dir"], place).wait(timeout=LIMIT)
    assert run.statuses == [0, 0] and "2 processes" in run.text, run.text


def test_a_launcher_waits_for_another_as_long_as_processes_do(on_two_nodes):
    """All is saved and its workers are done; the other machine's launcher has gone with an error and never comes to where
    launchers wait for each other. torchrun's own patience there is 300 s."""
    timeout = 10  # set-up, beside much else, must not take as long
    running = on_two_nodes(timeout, KILLED_RANK="1")
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.ranks[1].wait(LIMIT)
    run = running.wait(timeout=timeout + LIMIT)
    assert run.statuses == [0, 128 + signal.SIGKILL], run.text
    assert "Saved the model" in run.texts[0] and run.text.count("error: ") == 1, run.text
    assert "error: rank 1 was ended by SIGKILL" in run.texts[1] and "Traceback" not in run.text, run.text


def test_a_launcher_waits_no_longer_for_one_that_says_nothing(on_two_nodes, tmp_path):
    """The one that serves the store is stopped when all is saved: the other asks it, and gets no answer."""
    timeout = 10
    running = on_two_nodes(timeout, STOPPED_FILE=str(tmp_path / "stopped"))
    try:
        assert running.ranks[1].wait(timeout + LIMIT) == 0, running.text()
    finally:
        for launcher in running.ranks:  # one of them is stopped
            launcher.kill()
        run = running.wait()
    assert "Saved the model" in run.text and "error: " not in run.text, run.text


# One is killed before the others have found it.


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_before_the_rendezvous(victim, settings, before_meeting):  # noqa: F811
    with before_meeting(victim, lambda variables: Running(settings(ddp_timeout=1), 2, **variables)) as running:
        running.ranks[victim].kill()
        other = running.ranks[1 - victim]
        with contextlib.suppress(subprocess.TimeoutExpired):
            other.wait(LIMIT)
    running.wait()
    text = running.logs[1 - victim].read_text()
    assert other.returncode == 1 and text.count("error:") == 1, (other.returncode, text)


# Limits of the system.


def limited(what, soft, hard=None):
    return lambda: resource.setrlimit(what, (soft, soft if hard is None else hard))


def test_few_descriptors(settings):
    """A limit that may be raised is; one that may not is named with what is needed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = limited(resource.RLIMIT_NOFILE, 24)
    runs = [Running(settings("soft"), 2, preexec=limited(resource.RLIMIT_NOFILE, 16, hard)),
            Running(settings("hard", ddp_timeout=10), 2, preexec=few),
            Running(settings("launched", nproc_per_node=2), preexec=few)]
    run, refused, ends = [run.wait(timeout=LIMIT) for run in runs]
    assert set(run.statuses) == {0}, run.text
    assert set(refused.statuses) == {1}, refused.text
    for text in refused.texts:
        assert "open files and connections, and 24 are allowed (ulimit -n)" in text and "has ended" not in text, refused.text
    assert ends.status == 1 and "and 24 are allowed (ulimit -n)" in ends.text and "Traceback" not in ends.text, ends.text


@pytest.mark.parametrize("keys", [dict(), dict(nproc_per_node=2)])
def test_a_limit_on_the_size_of_files(keys, settings):
    run = Running(settings(**keys), preexec=limited(resource.RLIMIT_FSIZE, 200_000)).wait(timeout=LIMIT)
    assert run.status == 1 and run.text.count("error:") == 1, (run.status, run.text)
    assert "ulimit -f" in run.text and "'loss'" not in run.text, run.text


# Nobody reads what is said.


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_pipe(ignored, settings):
    """As behind `| head -1`, also where a parent ignores SIGPIPE."""
    def start(command):
        reader, writer = os.pipe()
        os.close(reader)
        process = subprocess.Popen([str(word) for word in command], stdout=writer, stderr=subprocess.PIPE, text=True,
                                   restore_signals=not ignored, env=dict(os.environ, OMP_NUM_THREADS="1"))
        os.close(writer)
        _, errors = process.communicate(timeout=LIMIT)
        return process.returncode, errors

    assert start([PROGRAM, "schema"]) == (-signal.SIGPIPE, "")
    # A run goes on: what is trained counts.
    keys = settings()
    status, errors = start([PROGRAM, "train", write_config(keys)])
    assert status == 0 and "error" not in errors, errors
    assert load_file(os.path.join(keys["output_dir"], "model.safetensors"))


def test_a_worker_that_stays_stopped_is_ended(tmp_path):
    """Somebody stops a worker (SIGSTOP) while it leaves, when its work is done and nobody else waits for it: its launcher does not
    wait for ever either. Of a job that is suspended as a whole the launcher counts no seconds."""
    source = (ROOT / "cli/quiet_torchrun.cpp").read_text()
    launcher = re.search(r'R"\((.*?)\)";', source, re.S)[1]
    # torchrun makes $$ of $$$$.
    worker = 'if [ "$RANK" = 1 ]; then kill -STOP $$$$; fi'
    command = [sys.executable, "-c", launcher, "--no-python", "--nnodes=1", "--nproc-per-node=2", "--master-addr=127.0.0.1",
               f"--master-port={free_port()}", "sh", "-c", worker]
    # It waits for 20 s more than this, which workers have for giving each other up.
    run = subprocess.run(command, env=os.environ | dict(LONGSPAN_DDP_TIMEOUT="-17"), capture_output=True, text=True, timeout=LIMIT)
    assert run.returncode == 128 + signal.SIGKILL, run.stderr
    assert "was stopped (SIGSTOP) for 4 s and did not go on: it is ended" in run.stderr, run.stderr
    assert "error: rank 1 was ended by SIGKILL" in run.stderr and "Traceback" not in run.stderr, run.stderr


def test_a_launcher_waits_for_the_first_machine_as_long_as_it_says():
    """torchrun alone waits twice as long: once for each of two kinds of addresses."""
    source = (ROOT / "cli/quiet_torchrun.cpp").read_text()
    launcher = re.search(r'R"\((.*?)\)";', source, re.S)[1]
    command = [sys.executable, "-c", launcher, "--no-python", "--nnodes=2", "--node-rank=1", "--nproc-per-node=1",
               "--master-addr=127.0.0.1", f"--master-port={free_port()}", "--rdzv-conf=timeout=20", "true"]
    begin = time.monotonic()
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert run.returncode == 1 and "did not meet at 127.0.0.1" in run.stderr and "in 20 s" in run.stderr, run.stderr
    assert time.monotonic() - begin < 38
