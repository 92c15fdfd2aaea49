"""A disk that is full for a run, without rights to mount one: writes that say so."""

import os
import shutil
import subprocess

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Is this file on the full disk? By its path; as long as FULL_FLAG is there; of one rank, if FULL_RANK says so. FULL_ERRNO: broken in
   another way than full; of paths with ALSO_MATCH it is full all the same. */
static int fault(int descriptor) {
  const char *match = getenv("FULL_MATCH"), *also = getenv("ALSO_MATCH"), *number = getenv("FULL_ERRNO"), *flag = getenv("FULL_FLAG"), *only = getenv("FULL_RANK"), *rank = getenv("RANK");
  char link[64], path[4096];
  if (!match || (flag && access(flag, F_OK) != 0) || (only && rank && strcmp(only, rank))) return 0;
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = 0;
  if (also && strstr(path, also)) return ENOSPC;
  return strstr(path, match) ? (number ? atoi(number) : ENOSPC) : 0;
}
ssize_t write(int descriptor, const void *data, size_t size) {
  const int number = size > 0 ? fault(descriptor) : 0;
  if (number) { errno = number; return -1; }
  return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(descriptor, data, size);
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) {
  const int number = size > 0 ? fault(descriptor) : 0;
  if (number) { errno = number; return -1; }
  return ((ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(descriptor, data, size, at);
}
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) {
  const int number = size > 0 ? fault(descriptor) : 0;
  if (number) { errno = number; return -1; }
  return ((ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64"))(descriptor, data, size, at);
}
int statvfs(const char *path, struct statvfs *disk) {
  const int result = ((int (*)(const char *, struct statvfs *))dlsym(RTLD_NEXT, "statvfs"))(path, disk);
  const char *bytes = getenv("FREE_BYTES");
  if (bytes) { disk->f_frsize = 1; disk->f_bavail = strtoull(bytes, NULL, 10); }
  return result;
}
int statvfs64(const char *path, struct statvfs64 *disk) { return statvfs(path, (struct statvfs *)disk); }
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "a C compiler, which building needs too"
    folder = tmp_path_factory.mktemp("shim")
    (folder / "full.c").write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "full.so", folder / "full.c", "-ldl"], check=True)
    return folder / "full.so"


@pytest.fixture
def full_disk(shim, monkeypatch):
    """full_disk(match, **variables): runs that start now find the disk full for paths with `match`."""
    def make(match=None, **variables):
        for name in ("FULL_MATCH", "ALSO_MATCH", "FULL_ERRNO", "FULL_FLAG", "FULL_RANK", "FREE_BYTES", "LD_PRELOAD"):
            monkeypatch.delenv(name, raising=False)
        variables |= dict(FULL_MATCH=match) if match else {}
        for name, value in (variables | dict(LD_PRELOAD=shim)).items():
            monkeypatch.setenv(name, str(value))
    yield make
    assert "LD_PRELOAD" in os.environ, "a test that makes no disk full"


__all__ = ["full_disk", "shim"]
