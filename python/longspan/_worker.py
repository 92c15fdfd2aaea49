"""One process of a run that longspan.train() has started: python -m longspan._worker FOLDER [DESCRIPTOR].

FOLDER: job.json has the configuration; the worker writes result.json or errorRANK.json. DESCRIPTOR: rank 0 writes each
event as a line of JSON.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
from typing import Any, Optional

from longspan._run import train_here


def main(folder: pathlib.Path, descriptor: Optional[int]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the starting process hands it on
    file, words = json.loads((folder / "job.json").read_text())
    rank = int(os.environ["RANK"])
    events = None if descriptor is None else os.fdopen(descriptor, "w", buffering=1)

    def write(event: dict[str, Any]) -> None:
        if events is not None:
            events.write(json.dumps(event) + "\n")

    try:
        result = train_here(file, words, write, (signal.SIGTERM, signal.SIGUSR1))
    except Exception as error:
        (folder / f"error{rank}.json").write_text(json.dumps([type(error).__name__, str(error)]))
        return 1
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(vars(result)))
    return 0


if __name__ == "__main__":
    status = main(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    sys.stdout.flush()
    os._exit(status)  # connections to ended ranks may be open, with threads that wait for them
