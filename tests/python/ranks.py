"""Runs a function on several processes that are connected by torch.distributed."""

import datetime
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

BUILT = pathlib.Path(os.environ.get("LONGSPAN_BUILD", "build")).absolute() / "python"
sys.path.insert(0, str(BUILT))


def run_ranks(size, function, *arguments, timeout=120, machines=None):
    """Calls function(rank, *arguments) on `size` processes of a Gloo group, and returns the results in rank order. `function`:
    of a module's top level. `machines`: a name of machines.machines() for each rank. Raises AssertionError with the output
    of a process that fails."""
    with tempfile.TemporaryDirectory() as folder:
        job = pathlib.Path(folder) / "job"
        job.write_bytes(pickle.dumps((function.__module__, function.__qualname__, arguments)))
        paths = os.pathsep.join([str(BUILT), *sys.path])
        environment = os.environ | dict(PYTHONPATH=paths, OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
        if machines:
            environment["GLOO_SOCKET_IFNAME"] = "card0"
        place = [["ip", "netns", "exec", name] for name in machines] if machines else [[]] * size
        workers = [subprocess.Popen([*place[rank], sys.executable, __file__, folder, str(rank), str(size)], env=environment,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(size)]
        try:
            texts = [worker.communicate(timeout=timeout)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        for rank, worker in enumerate(workers):
            assert worker.returncode == 0, f"rank {rank} of {size} ended with {worker.returncode}:\n{texts[rank]}"
        return [pickle.loads((pathlib.Path(folder) / f"result{rank}").read_bytes()) for rank in range(size)]


def _work(folder, rank, size):
    import importlib

    import torch.distributed as dist

    module, name, arguments = pickle.loads((pathlib.Path(folder) / "job").read_bytes())
    store = dist.FileStore(str(pathlib.Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
    result = getattr(importlib.import_module(module), name)(rank, *arguments)
    (pathlib.Path(folder) / f"result{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
