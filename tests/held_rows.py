"""Runs that wait for their rows until a test lets them go on."""

import contextlib
import shutil
import subprocess
import time

import pytest
from patience import patient_time

# Who opens the rows says so in a file, and waits until that is gone.
HELD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Open)(const char *, int, ...);

static int held(const char *name, const char *path, int flags, int mode) {
  const Open opens = (Open)dlsym(RTLD_NEXT, name);
  const char *file = getenv("HELD_FILE"), *last = strrchr(path, '/');
  if (file && last && !strcmp(last, "/chats.json")) {
    const int log = opens(file, O_WRONLY | O_APPEND);
    if (log >= 0 && write(log, "x", 1) == 1) close(log);
    while (access(file, F_OK) == 0) usleep(20000);
  }
  return opens(path, flags, mode);
}

#define HOLD(name)                          \
  int name(const char *path, int flags, ...) { \
    va_list rest;                            \
    va_start(rest, flags);                   \
    const int mode = va_arg(rest, int);      \
    va_end(rest);                            \
    return held(#name, path, flags, mode);   \
  }
HOLD(open)
HOLD(open64)
"""


@pytest.fixture(scope="module")
def held_rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held")
    (folder / "held.c").write_text(HELD)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "held.so", folder / "held.c", "-ldl"], check=True)
    return folder / "held.so"


@pytest.fixture
def while_loading(held_rows, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def while_loading(settings, start):
        """What start(settings) starts, when all ranks have met and wait for rows that do not come; go_on() ends that."""
        file = tmp_path / "waiting"
        file.touch()
        with monkeypatch.context() as environment:
            environment.setenv("LD_PRELOAD", str(held_rows))
            environment.setenv("HELD_FILE", str(file))
            running, end = start(settings), patient_time() + 60
        while not file.read_text():
            assert patient_time() < end, running.text()
            time.sleep(0.05)
        running.go_on = lambda: file.unlink(missing_ok=True)
        try:
            yield running
        except BaseException:  # nobody waits for them any more
            for rank in running.ranks:
                rank.kill()
            raise
        finally:
            running.go_on()

    return while_loading
