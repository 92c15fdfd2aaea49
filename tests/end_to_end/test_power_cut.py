"""A power cut takes what has not been synced: whatever a checkpoint holds has reached the disk before it gets its name."""

import pathlib
import shutil
import subprocess

import pytest
from conftest import Running, settings_of

# What is synced, with its size then, and what gets another name, in order; names end at a tab, so that none may have one.
RECORDING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void note(const char *what, const char *one, const char *other) {
  const char *list = getenv("SYNC_LOG");
  const int log = list ? open(list, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
  char line[9000];
  const int length = snprintf(line, sizeof(line), "%s\t%s\t%s\n", what, one, other);
  if (log >= 0 && write(log, line, length) != length) abort();
  if (log >= 0) close(log);
}
static int synced(const char *call, int descriptor) {
  char link[64], path[4096], size[32];
  struct stat file;
  const int result = ((int (*)(int))dlsym(RTLD_NEXT, call))(descriptor);
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = 0;
  snprintf(size, sizeof(size), "%lld", fstat(descriptor, &file) == 0 ? (long long)file.st_size : -1);
  if (result == 0) note("sync", path, size);
  return result;
}
int fsync(int descriptor) { return synced("fsync", descriptor); }
int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
int rename(const char *from, const char *to) {
  note("move", from, to);
  return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
int renameat2(int here, const char *from, int there, const char *to, unsigned flags) {
  note("move", from, to);
  return ((int (*)(int, const char *, int, const char *, unsigned))dlsym(RTLD_NEXT, "renameat2"))(here, from, there, to, flags);
}
"""


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """recorded(start): what start() makes, and [(what, path, size or new path)] of all its processes."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    library, log = tmp_path / "recording.so", tmp_path / "sync.log"
    (tmp_path / "recording.c").write_text(RECORDING)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "recording.c", "-ldl"], check=True)

    def recorded(start):
        with monkeypatch.context() as environment:
            environment.setenv("LD_PRELOAD", str(library))
            environment.setenv("SYNC_LOG", str(log))
            made = start()
        return made, [line.split("\t") for line in log.read_text().splitlines()]
    return recorded


class Disk:
    """What a power cut would leave, as the events tell."""

    def __init__(self, events):
        self.sizes, self.changed, self.renamed = {}, set(), []  # of files; folders whose names are not there yet; new names in order
        for what, path, more in events:
            path, more = pathlib.Path(path), pathlib.Path(more)
            if what == "sync":
                self.sizes[path] = int(str(more))
                self.changed.discard(path)
                continue
            if path.name == ".longspan-lock":
                continue  # it goes with the run
            for known in [known for known in self.sizes if known.is_relative_to(path)]:
                self.sizes[more / known.relative_to(path)] = self.sizes.pop(known)
            self.changed |= {path.parent, more.parent}
            self.renamed.append(more)


@pytest.mark.parametrize("num_ranks, keys", [(1, dict()), (2, dict(zero_stage=3))])
def test_what_is_saved_is_synced(num_ranks, keys, recorded, models, data, tmp_path):
    settings = settings_of(models["llama"], data, tmp_path / "run", max_steps=2, save_strategy="steps", save_steps=2, **keys)
    run, events = recorded(lambda: Running(settings, num_ranks).wait())
    assert set(run.statuses) == {0}, run.text
    checkpoint, partial = run.output_dir / "checkpoint-2", run.output_dir / ".checkpoint-2.partial"
    [named] = [number for number, event in enumerate(events) if event == ["move", str(partial), str(checkpoint)]]
    disk = Disk(events[:named])
    files = [path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file()]
    assert len(files) > 6
    for name in files:
        assert disk.sizes.get(partial / name) == (checkpoint / name).stat().st_size, (name, events)
    assert not [folder for folder in disk.changed if folder.is_relative_to(partial)], events
    # The log is one of them, and whole before the table that names it.
    assert "trainer_log.jsonl" in (checkpoint / "checksums.json").read_text()
    names = [path.name for path in disk.renamed if path.parent == partial]
    assert names.index("trainer_log.jsonl") < names.index("checksums.json"), names
    # In the end the folder is the same on the disk as it is said to be, the checkpoint's name and the log beside it too.
    disk = Disk(events)
    for name in ("trainer_log.jsonl", "trainer_state.json", "train_results.json", "config.json"):
        assert disk.sizes.get(run.output_dir / name) == (run.output_dir / name).stat().st_size, (name, events)
    assert checkpoint in disk.renamed and run.output_dir not in disk.changed, events
