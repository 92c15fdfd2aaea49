"""A disk may take longer than processes wait for each other."""

import shutil
import subprocess
import time

import pytest
from conftest import Running, settings_of
from faults import wait_for

SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of one rank's weights and state: for so many seconds, or until a file is gone. */
int fsync(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = 0;
  const char *rank = getenv("RANK"), *slow = getenv("SLOW_RANK"), *name = strrchr(path, '/');
  if (rank && slow && !strcmp(rank, slow) && name && strstr(name, ".safetensors.")) {
    const char *file = getenv("SLOW_WHILE_THERE");
    if (!file) sleep(atoi(getenv("SLOW_SECONDS")));
    while (file && access(file, F_OK) == 0) usleep(20000);
  }
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}
"""
TIMEOUT = 2


@pytest.fixture(scope="module")
def slow_disk(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "slow.so", folder / "slow.c", "-ldl"], check=True)
    return folder / "slow.so"


@pytest.fixture
def start(slow_disk, models, data, tmp_path, monkeypatch):
    def start(slow_rank, seconds, **keys):
        with monkeypatch.context() as environment:
            environment.setenv("LD_PRELOAD", str(slow_disk))
            environment.setenv("SLOW_RANK", str(slow_rank))
            environment.setenv("SLOW_SECONDS", str(seconds))
            return Running(settings_of(models["llama"], data, tmp_path / "run", ddp_timeout=TIMEOUT, max_steps=2,
                                       save_strategy="steps", save_steps=2) | keys, 2)
    return start


@pytest.mark.parametrize("slow_rank, keys", [(0, dict()), (0, dict(save_total_limit=1)), (1, dict(zero_stage=3))])
def test_the_others_wait(slow_rank, keys, start):
    begin = time.monotonic()
    finished = start(slow_rank, 3 * TIMEOUT, **keys).wait(timeout=90)
    assert set(finished.statuses) == {0}, finished.text
    assert time.monotonic() - begin > 9 * TIMEOUT  # a checkpoint (weights, state) and the model


@pytest.mark.parametrize("victim", [0, 1])
def test_but_not_for_one_that_is_gone(victim, start):
    running = start(0, 60)
    wait_for(running, "'loss'")
    while not list(running.output_dir.glob(".checkpoint-2.partial/.longspan-model.safetensors.*")):
        assert all(rank.poll() is None for rank in running.ranks), running.text()
        time.sleep(0.05)
    time.sleep(1)
    running.ranks[victim].kill()
    begin = time.monotonic()
    while running.ranks[1 - victim].poll() is None:
        assert time.monotonic() - begin < TIMEOUT + 20, running.text()
        time.sleep(0.05)
    text = running.logs[1 - victim].read_text()
    assert running.ranks[1 - victim].returncode == 1
    assert f"Rank {victim} (host" in text and "has ended without a word" in text, text
    running.wait()
