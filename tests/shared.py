"""What is made once for all of pytest's workers: the first that asks makes it, others wait until it is whole."""

import contextlib
import fcntl
import os
import shutil


@contextlib.contextmanager
def locked(folder):
    """Nobody else is in here with this folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def made_once(folder, make):
    """`folder`, which make(folder) fills. Where that fails, the next one that asks tries again."""
    made = folder.with_name(folder.name + ".made")
    if not made.exists():
        lock = folder.with_name(folder.name + ".lock")
        lock.mkdir(parents=True, exist_ok=True)
        with locked(lock):
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                made.touch()
    return folder


def replace_text(path, text):
    """Who reads meanwhile sees what was there before."""
    beside = path.parent.with_name(f"{path.parent.name}.{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)
