"""A disk that is slow for a run, without rights to mount one."""

import shutil
import subprocess

import pytest

SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of one rank's weights and state, or of those with SLOW_PATH in their path, or of files and folders with SLOW_NAME in their name:
   for so many seconds, or until a file is gone. SLOW_LOG gets the names, each before it waits. */
static void be_slow_with(const char *path) {
  const char *rank = getenv("RANK"), *slow = getenv("SLOW_RANK"), *name = strrchr(path, '/'), *part = getenv("SLOW_PATH");
  const char *wanted = getenv("SLOW_NAME");
  if (!rank || !slow || strcmp(rank, slow) || !name || !strstr(name, wanted ? wanted : ".safetensors.")) return;
  if (part && !strstr(path, part)) return;
  const char *file = getenv("SLOW_WHILE_THERE"), *list = getenv("SLOW_LOG");
  const int log = list ? open(list, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
  if (log >= 0 && dprintf(log, "%s\n", name + 1) > 0) close(log);
  if (!file) sleep(atoi(getenv("SLOW_SECONDS")));
  while (file && access(file, F_OK) == 0) usleep(20000);
}
static void be_slow(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = 0;
  be_slow_with(path);
}
/* SLOW_AT: the call that is slow. */
static int is_slow_at(const char *call) {
  const char *wanted = getenv("SLOW_AT");
  return !strcmp(wanted ? wanted : "fsync", call);
}
int fsync(int descriptor) {
  if (is_slow_at("fsync")) be_slow(descriptor);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}
int rename(const char *from, const char *to) {
  if (is_slow_at("rename")) be_slow_with(from);
  return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
/* The program drops a file from the system's cache before it reads the file back. */
int posix_fadvise(int descriptor, off_t begin, off_t size, int advice) {
  if (is_slow_at("posix_fadvise")) be_slow(descriptor);
  return ((int (*)(int, off_t, off_t, int))dlsym(RTLD_NEXT, "posix_fadvise"))(descriptor, begin, size, advice);
}
/* The first write of a file. */
ssize_t write(int descriptor, const void *data, size_t size) {
  struct stat file;
  if (is_slow_at("write") && size > 0 && fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode) && file.st_size == 0) be_slow(descriptor);
  return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(descriptor, data, size);
}
"""


@pytest.fixture(scope="session")
def slow_disk(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "slow.so", folder / "slow.c", "-ldl"], check=True)
    return folder / "slow.so"


__all__ = ["slow_disk"]
