"""Processes that wait before they meet others until a test lets them go on, addresses that no machine has, and questions for
the name of an address."""

import contextlib
import shutil
import subprocess
import time

import pytest
from patience import patient_time

# The rank HELD_RANK that looks for HELD_HOST says so in HELD_FILE, and waits until that is gone. Nobody may take
# 192.0.2.1, whatever the system lets programs have. NAMES_FILE gets a line for each question that the server of names may be
# asked for the name of an address.
HELD = r"""
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef RTLD_NEXT
#define RTLD_NEXT ((void *)-1l)
#endif

typedef int (*LookUp)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
typedef int (*Name)(const struct sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t, int);
typedef int (*Bind)(int, const struct sockaddr *, socklen_t);

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
  const char *held = getenv("HELD_HOST"), *file = getenv("HELD_FILE");
  const char *rank = getenv("RANK"), *whose = getenv("HELD_RANK");
  if (host && held && file && rank && whose && !strcmp(host, held) && !strcmp(rank, whose)) {
    const int log = open(file, O_WRONLY | O_APPEND);
    if (log >= 0 && write(log, "x", 1) == 1) close(log);
    while (access(file, F_OK) == 0) usleep(20000);
  }
  return ((LookUp)dlsym(RTLD_NEXT, "getaddrinfo"))(host, service, hints, found);
}

int getnameinfo(const struct sockaddr *address, socklen_t length, char *host, socklen_t host_length, char *service,
                socklen_t service_length, int flags) {
  const char *file = getenv("NAMES_FILE");
  if (file && !(flags & NI_NUMERICHOST)) {
    const int log = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (log >= 0 && write(log, "asked\n", 6) == 6) close(log);
  }
  return ((Name)dlsym(RTLD_NEXT, "getnameinfo"))(address, length, host, host_length, service, service_length, flags);
}

int bind(int descriptor, const struct sockaddr *address, socklen_t length) {
  const struct sockaddr_in *wanted = (const struct sockaddr_in *)address;
  if (wanted->sin_family == AF_INET && wanted->sin_addr.s_addr == inet_addr("192.0.2.1")) {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  return ((Bind)dlsym(RTLD_NEXT, "bind"))(descriptor, address, length);
}
"""


@pytest.fixture(scope="module")
def held_meetings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meetings")
    (folder / "held.c").write_text(HELD)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "held.so", folder / "held.c", "-ldl"], check=True)
    return folder / "held.so"


@pytest.fixture
def before_meeting(held_meetings, tmp_path):
    @contextlib.contextmanager
    def before_meeting(rank, start):
        """What start(variables) starts, when this rank is about to look for the others, and stays so."""
        file = tmp_path / "waiting"
        file.touch()
        running = start(dict(LD_PRELOAD=str(held_meetings), HELD_HOST="127.0.0.1", HELD_RANK=str(rank),
                             HELD_FILE=str(file)))
        end = patient_time() + 60
        while not file.read_text():
            assert patient_time() < end and running.ranks[rank].poll() is None, running.text()
            time.sleep(0.02)
        yield running
        file.unlink()

    return before_meeting
