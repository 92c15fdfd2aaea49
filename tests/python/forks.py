"""Runs a function on several processes that are forks of one that has imported transformers, which takes seconds. The
process of the tests itself is not forked: its threads would not exist in the fork, which would wait for them."""

import datetime
import multiprocessing
import os
import pathlib
import pickle
import socket
import sys
import tempfile
import traceback

import ranks  # puts the built package on sys.path


def run_forks(size, function, *arguments, timeout=240, joined=True):
    """Calls function(rank, *arguments) on `size` processes of a Gloo group, and returns the results in rank order. Raises
    AssertionError with the traceback of a process that fails. Without `joined` the function initializes the group."""
    assert ranks.BUILT.is_dir(), f"{ranks.BUILT} is missing"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformers.models.auto.modeling_auto", "transformers.trainer"])
    port = "1" if joined else free_port()
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.flush(), sys.stderr.flush()
        workers = [context.Process(target=_work, args=(folder, rank, size, function, arguments, port))
                   for rank in range(size)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join(timeout)
        finally:
            for worker in workers:
                worker.kill()
        texts = []
        for rank, worker in enumerate(workers):
            path = pathlib.Path(folder) / f"output{rank}"
            if worker.exitcode != 0:
                texts.append(f"rank {rank} ended with {worker.exitcode}:\n{path.read_text()[-3000:] if path.exists() else ''}")
        assert not texts, "\n".join(texts)
        return [pickle.loads((pathlib.Path(folder) / f"result{rank}").read_bytes()) for rank in range(size)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _work(folder, rank, size, function, arguments, port):
    import torch
    import torch.distributed as dist

    folder = pathlib.Path(folder)
    sys.stdout = sys.stderr = open(folder / f"output{rank}", "w", buffering=1)
    os.dup2(sys.stdout.fileno(), 1), os.dup2(sys.stdout.fileno(), 2)
    status = 1
    try:
        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size),
                          LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        if port == "1":
            store = dist.FileStore(str(folder / "store"), size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=120))
        (folder / f"result{rank}").write_bytes(pickle.dumps(function(rank, *arguments)))
        if dist.is_initialized():
            dist.barrier()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
