"""Runs of the program start from a process that has loaded its libraries already.

Loading libtorch takes a quarter of a second of a core, and the tests start the program some thousands of times. So a
program of the build is started once, with a library before its own that takes over where the C library would call main():
it waits for requests there, and for each makes a copy of itself (clone) with the arguments, variables, files and folder of
the request, which then goes into main(). The copy is a child of the process that asks (CLONE_PARENT), so that whoever waits
for it, kills it or looks at /proc sees what it would see of one that was started the ordinary way; only /proc/PID/cmdline
is that of the first. Variables that are read while libraries are loaded (LD_*, OMP_*, ...) belong to a process: for others
there is another.

Everything else starts the ordinary way: other programs, starts with a preexec_fn, starts under COLD_START=1, the first one
with new variables (a single start gains nothing), and systems on which something of the above is missing."""

import array
import atexit
import functools
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

BUILD = pathlib.Path(os.environ.get("LONGSPAN_BUILD", pathlib.Path(__file__).resolve().parent.parent / "build"))
COLD_START = "COLD_START"
# Names of variables that the C library, OpenMP's runtime, MKL, oneDNN or torch may read while they are loaded.
WHILE_LOADING = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH_", "C10_",
                 "CUDA_", "LONGSPAN_")
MOST_PARENTS = 5

PARENT = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

typedef int (*Main)(int, char **, char **);
static Main program;

/* As fork(), but a child of this process's parent. The C library keeps the thread's number where the kernel clears it at
   the end. */
static pid_t sibling(void) {
  int *number = NULL;
  void *head = NULL;
  size_t size = 0;
  if (prctl(PR_GET_TID_ADDRESS, &number, 0, 0, 0) != 0 || !number || *number != getpid()) return -1;
  if (syscall(SYS_get_robust_list, 0, &head, &size) != 0) return -1;
  const unsigned long flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
#ifdef __x86_64__
  const pid_t pid = (pid_t)syscall(SYS_clone, flags, NULL, NULL, number, 0);
#else
  const pid_t pid = (pid_t)syscall(SYS_clone, flags, NULL, NULL, 0, number);
#endif
  if (pid == 0) syscall(SYS_set_robust_list, head, size);
  return pid;
}

static int alone(void) {
  DIR *folder = opendir("/proc/self/task");
  int threads = 0;
  for (struct dirent *entry; folder && (entry = readdir(folder));) threads += entry->d_name[0] != '.';
  if (folder) closedir(folder);
  return threads == 1;
}

static int receive_all(int from, char *data, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t got = read(from, data + done, size - done);
    if (got <= 0) return 0;
    done += (size_t)got;
  }
  return 1;
}

/* The next request: its size, and with it three files; then texts that end in zeros: the folder, how many arguments,
   these, variables. */
static char *request(int from, int files[3], size_t *size) {
  uint32_t length = 0;
  char space[CMSG_SPACE(3 * sizeof(int))] = {0};
  struct iovec part = {&length, sizeof(length)};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
  if (recvmsg(from, &message, 0) != sizeof(length)) return NULL;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_len != CMSG_LEN(3 * sizeof(int))) return NULL;
  memcpy(files, CMSG_DATA(header), 3 * sizeof(int));
  char *texts = malloc(length + 1);
  *size = length;
  if (!texts || !receive_all(from, texts, length)) return NULL;
  texts[length] = 0;
  return texts;
}

static int serve(int count, char **words, char **variables) {
  const int place = atoi(getenv("WARM_START"));
  for (;;) {
    int files[3];
    size_t size = 0;
    char *texts = request(place, files, &size);
    if (!texts) _exit(0);
    const int32_t pid = alone() ? sibling() : -1;
    if (pid == 0) {
      close(place);
      char *next = texts, *end = texts + size, *folder = next;
      next += strlen(next) + 1;
      const int argc = atoi(next);
      next += strlen(next) + 1;
      char **argv = calloc((size_t)argc + 1, sizeof(char *));
      for (int i = 0; i < argc; ++i, next += strlen(next) + 1) argv[i] = next;
      /* What the program has set for itself before its libraries were loaded stays. */
      char **own = environ;
      clearenv();
      for (; next < end; next += strlen(next) + 1) putenv(next);
      for (; own && *own; ++own) {
        char *name = strndup(*own, strcspn(*own, "="));
        if (strcmp(name, "WARM_START") && strcmp(name, "LD_PRELOAD") && !getenv(name)) putenv(*own);
        free(name);
      }
      /* Those files are beyond 0, 1 and 2, which this process has. */
      for (int i = 0; i < 3; ++i)
        if (dup2(files[i], i) < 0) _exit(127);
      for (int i = 0; i < 3; ++i) close(files[i]);
      if (chdir(folder) != 0) _exit(127);
      program_invocation_name = argv[0];
      return program(argc, argv, environ);
    }
    for (int i = 0; i < 3; ++i) close(files[i]);
    free(texts);
    if (write(place, &pid, sizeof(pid)) != sizeof(pid)) _exit(0);
  }
}

typedef void (*Action)(void);
int __libc_start_main(Main main, int argc, char **argv, Action init, Action fini, Action at_end, void *stack) {
  typedef int (*Start)(Main, int, char **, Action, Action, Action, void *);
  const Start start = (Start)dlsym(RTLD_NEXT, "__libc_start_main");
  program = main;
  return start(getenv("WARM_START") ? serve : main, argc, argv, init, fini, at_end, stack);
}
"""


@functools.cache
def library():
    """The one above, compiled; None: this machine has no compiler, or no such system."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler or not sys.platform.startswith("linux"):
        return None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="warm-start-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "warm.c").write_text(PARENT)
    done = subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", folder / "warm.so", folder / "warm.c", "-ldl"])
    return folder / "warm.so" if done.returncode == 0 else None


class Parent:
    """A program that has loaded its libraries, and makes copies of itself."""

    def __init__(self, program, words, variables):
        ours, theirs = socket.socketpair()
        preloaded = ":".join(filter(None, [str(library()), variables.get("LD_PRELOAD")]))
        self.process = Cold([program, *words], env=variables | dict(LD_PRELOAD=preloaded, WARM_START=str(theirs.fileno())),
                            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
        theirs.close()
        self.place = ours

    def copy(self, arguments, folder, variables, files):
        """The number of a process that is this one's sibling."""
        texts = [os.fsencode(folder), str(len(arguments)).encode(), *arguments,
                 *(name + b"=" + value for name, value in variables.items())]
        request = b"".join(text + b"\0" for text in texts)
        self.place.sendmsg([struct.pack("I", len(request))],
                           [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        self.place.sendall(request)
        answer = self.place.recv(4, socket.MSG_WAITALL)
        pid = struct.unpack("i", answer)[0] if len(answer) == 4 else -1
        if pid <= 0:
            raise OSError("it made no copy")
        return pid

    def end(self):
        self.place.close()
        self.process.kill()
        self.process.wait()


Cold = subprocess.Popen
parents, asked = {}, set()
one_at_a_time = threading.Lock()


def parent_of(program, words, variables):
    """None the first time."""
    loading = {name: value for name, value in variables.items() if name.startswith(WHILE_LOADING)}
    key = (program, *words, *sorted(loading.items()))
    if key in parents:
        parents[key] = parents.pop(key)  # the last that was used is the last in order
    elif key not in asked:
        asked.add(key)
        return None
    else:
        while len(parents) >= MOST_PARENTS:
            parents.pop(next(iter(parents))).end()
        parents[key] = Parent(program, words, loading)
    return parents[key]


class Popen(Cold):
    """Starts programs of the build as copies."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                       p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, *others):
        def cold():
            Cold._execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags,
                                shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, *others)

        program = None if isinstance(args, (str, bytes, os.PathLike)) else pathlib.Path(os.fsdecode(args[0]))
        plain = not (executable or preexec_fn or pass_fds or shell) and close_fds and restore_signals
        # gid, gids, uid, umask, start_new_session and, since Python 3.11, process_group.
        plain = plain and all(value is None or value is False or value == -1 for value in others)
        if not plain or program is None or program.parent != BUILD or not library():
            return cold()
        variables = {os.fsencode(name): os.fsencode(value) for name, value in (os.environ if env is None else env).items()}
        # The program itself sets variables and starts again, where the command is one that computes.
        words = [os.fsdecode(word) for word in args[1:2]] if program.name == "longspan" else []
        if COLD_START.encode() in variables:
            return cold()
        files = [given if given != -1 else place for place, given in enumerate((p2cread, c2pwrite, errwrite))]
        with one_at_a_time:
            parent = parent_of(program, words, {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()})
            try:
                self.pid = parent and parent.copy([os.fsencode(word) for word in args], os.fspath(cwd or os.getcwd()), variables,
                                                  files)
            except OSError:
                self.pid = None
                for key in [key for key, other in parents.items() if other is parent]:
                    parents.pop(key).end()
        if self.pid is None:
            return cold()
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def install():
    subprocess.Popen = Popen
