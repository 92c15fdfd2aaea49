"""One rank of a machine reads the data sets, and the others get their examples from its file."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import Running, settings_of, write_dataset
from faults import wait_for
from full_disk import full_disk, shim  # noqa: F401
from held_rows import held_rows, while_loading  # noqa: F401

# READ_LOG gets the rank that opens the rows. OTHER_MACHINE: a rank that sees other processes than the rest. NOT_OPENED: one
# that may not open what another process has open. NO_TMPFILE: file systems without files that have no name.
WATCHED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Open)(const char *, int, ...);
typedef ssize_t (*ReadLink)(const char *, char *, size_t);

static int is_rank(const char *name) {
  const char *rank = getenv("RANK"), *which = getenv(name);
  return rank && which && !strcmp(rank, which);
}
ssize_t readlink(const char *path, char *to, size_t size) {
  if (is_rank("OTHER_MACHINE") && !strcmp(path, "/proc/self/ns/pid") && size > 5) return memcpy(to, "other", 5) ? 5 : -1;
  return ((ReadLink)dlsym(RTLD_NEXT, "readlink"))(path, to, size);
}
static int watched(const char *name, const char *path, int flags, int mode) {
  const Open opens = (Open)dlsym(RTLD_NEXT, name);
  const char *log = getenv("READ_LOG"), *last = strrchr(path, '/'), *rank = getenv("RANK");
  if (log && last && !strcmp(last, "/chats.json")) {
    const int file = opens(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file >= 0 && write(file, rank ? rank : "0", 1) == 1) close(file);
  }
  if (is_rank("NOT_OPENED") && !strncmp(path, "/proc/", 6) && strstr(path, "/fd/")) { errno = EACCES; return -1; }
  if (getenv("NO_TMPFILE") && (flags & O_TMPFILE) == O_TMPFILE) { errno = EOPNOTSUPP; return -1; }
  return opens(path, flags, mode);
}

#define WATCH(name)                          \
  int name(const char *path, int flags, ...) { \
    va_list rest;                            \
    va_start(rest, flags);                   \
    const int mode = va_arg(rest, int);      \
    va_end(rest);                            \
    return watched(#name, path, flags, mode); \
  }
WATCH(open)
WATCH(open64)
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    folder = tmp_path_factory.mktemp("watched")
    (folder / "watched.c").write_text(WATCHED)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "watched.so", folder / "watched.c", "-ldl"], check=True)
    return str(folder / "watched.so")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def settings(models, data, tmp_path, cache):
    def make(name="run", **changes):
        return settings_of(models["llama"], data, tmp_path / name, cache_dir=str(cache)) | dict(max_steps=2) | changes

    return make


@pytest.mark.parametrize("variables, readers", [
    (dict(), "0"),
    (dict(NO_TMPFILE="1"), "0"),
    (dict(OTHER_MACHINE="1"), "01"),
    (dict(NOT_OPENED="1"), "01"),
], ids=str)
def test_one_rank_of_a_machine_reads(variables, readers, settings, watched, tmp_path, cache):
    alone = Running(settings("alone", per_device_train_batch_size=3)).wait()
    log = tmp_path / "read"
    # Without states, no rank reads the files for their checksums.
    run = Running(settings(save_only_model=True), 3, LD_PRELOAD=watched, READ_LOG=str(log), **variables).wait()
    assert set(run.statuses) == {0}, run.text
    assert set(log.read_text()) == set(readers)
    assert run.text.count("The first training example") == 1
    refused = "warning: rank 1 reads the data sets by itself, not from rank 0: "
    assert run.texts[0].count(refused) == run.text.count(refused) == ("NOT_OPENED" in variables), run.text
    spread = "The ranks of a machine are no neighbours ("
    assert run.text.count(spread) == run.texts[0].count(f"warning: {spread}") == ("OTHER_MACHINE" in variables), run.text
    assert re.findall("Data .*", run.text) == re.findall("Data .*", alone.text)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("variables", [dict(OTHER_MACHINE="1"), dict(NOT_OPENED="1")], ids=str)
def test_an_early_start_where_another_rank_has_kept_rows(variables, settings, watched, tmp_path):
    """One rank encodes during the steps. The other one waits for the end, and takes the kept rows."""
    keys = dict(tokenized_path=str(tmp_path / "kept"), save_strategy="steps", save_steps=1)
    cold = Running(settings("cold", **keys), 2, LD_PRELOAD=watched, **variables).wait()
    warm = Running(settings("warm", **keys), 2).wait()
    assert set(cold.statuses) == set(warm.statuses) == {0}, cold.text + warm.text
    assert "encoded during the training" in cold.text and "encoded during the training" not in warm.text, cold.text
    assert cold.logged("loss") == warm.logged("loss")
    cold_state, warm_state = (json.loads(next(run.output_dir.glob("checkpoint-2/**/training_state.json")).read_text())
                              for run in (cold, warm))
    assert cold_state["run"]["rows"] == warm_state["run"]["rows"]


def encoded_files(pid, folder):
    """The files that the process has open in the folder, with names or without."""
    links = [os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(f"{folder}/")]


def test_a_run_killed_while_it_reads_leaves_nothing(settings, cache, while_loading):
    with while_loading(settings(), lambda keys: Running(keys, 2)) as running:
        assert encoded_files(running.ranks[0].pid, cache)
        for rank in running.ranks:
            rank.kill()
        running.wait()
    assert not list(cache.iterdir())


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_run_killed_in_a_step_leaves_nothing(num_ranks, settings, cache):
    running = Running(settings(max_steps=100000), num_ranks)
    wait_for(running, "'loss'")
    assert all(encoded_files(rank.pid, cache) for rank in running.ranks)
    for rank in running.ranks:
        rank.kill()
    running.wait()
    assert not list(cache.iterdir())


@pytest.mark.parametrize("variable", ["there", "not there"])
def test_the_system_says_where_temporary_files_are(variable, settings, tmp_path):
    folder = tmp_path / "temporary"
    if variable == "there":
        folder.mkdir()
    keys = settings(max_steps=100000)
    del keys["cache_dir"]
    running = Running(keys, TMPDIR=str(folder))
    wait_for(running, "'loss'")
    assert len(encoded_files(running.ranks[0].pid, folder if variable == "there" else "/tmp")) >= 1
    running.ranks[0].kill()
    running.wait()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_full_disk(num_ranks, settings, cache, full_disk):
    full_disk(cache)
    run = Running(settings(), num_ranks).wait()
    assert set(run.statuses) == {1} and run.text.count("error: ") == 1, run.text
    needs = re.search(rf"error: The encoded data set needs ([\d.]+) KiB in {cache} \(No space left on device\)\.", run.texts[0])
    assert needs and float(needs[1]) > 10 and "cache_dir" in run.texts[0], run.text
    assert not run.output_dir.exists() and not list(cache.iterdir())


def test_a_folder_that_cannot_be_made(settings, tmp_path):
    (tmp_path / "file").touch()
    run = Running(settings(cache_dir=str(tmp_path / "file" / "cache")), 2).wait()
    assert set(run.statuses) == {1} and run.text.count("error: ") == 1, run.text
    assert "file/cache, which cannot be made (Not a directory)" in run.texts[0] and "cache_dir" in run.texts[0], run.text


@pytest.mark.long
def test_memory_does_not_grow_with_the_rows(settings, tmp_path):
    """20000 rows more take 60 MB of memory where they are held."""
    had = {}
    for num_rows in (5000, 25000):
        folder = tmp_path / f"data{num_rows}"
        write_dataset(folder, num_rows=num_rows, shortest=90, longest=90)
        # The C library keeps up to 64 MB of freed memory in each further arena.
        keys = settings(f"run{num_rows}", dataset_dir=str(folder), max_steps=100000)
        running = Running(keys, 2, MALLOC_ARENA_MAX="1")
        wait_for(running, "'loss'")
        # The rank that reads has the rows in memory until they are in the file; the other one never has them.
        had[num_rows] = [int(re.search(rf"{word}:\s+(\d+)", pathlib.Path(f"/proc/{rank.pid}/status").read_text())[1]) / 1024
                         for word, rank in zip(("RssAnon", "VmHWM"), running.ranks)]
        for rank in running.ranks:
            rank.kill()
        running.wait()
    assert max(many - few for few, many in zip(had[5000], had[25000])) < 30, had
