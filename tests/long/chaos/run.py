"""Draws runs and faults by chance, and compares each with a run that nobody disturbed: `make chaos MINUTES=60`.

Prints the seed, a few lines for each case, and tables. What goes wrong is kept, with the command that plays it again. Fails where a
result differs, a process outlives the bound on its end, or an end is not what is promised."""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2]), str(pathlib.Path(__file__).resolve().parents[1])]

from chaos import drawing, faults, runs, tables  # noqa: E402
from chaos.case import Player, Undisturbed  # noqa: E402
from chaos.world import what_is_missing  # noqa: E402


def memory_disk():
    """Where the disks of cases lie; in memory where it has room for them."""
    shared = pathlib.Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 4 << 30 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="no case begins later")
    parser.add_argument("--faults", type=int, default=10**9, help="no case begins after so many")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="left out: drawn and printed")
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--fault", default="", choices=["", *faults.BY_NAME], metavar="NAME", help="only this kind, one in each case")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--ddp-timeout", type=int, default=10)
    parser.add_argument("--keep", default=str(runs.PROGRAM.parent / "chaos"), help="where what goes wrong is kept")
    parser.add_argument("--list", action="store_true", help="print the kinds of faults, and what is promised for each")
    arguments = parser.parse_args()
    if arguments.list:
        for fault in faults.FAULTS:
            print(f"{fault.name}: {', '.join(sorted(fault.ends | {'done'}))}; {', '.join(fault.moments)}")
        return 0
    if problem := what_is_missing():
        print(problem, file=sys.stderr)
        return 1
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = os.environ["TQDM_DISABLE"] = "1"
    keep = pathlib.Path(arguments.keep)
    keep.mkdir(parents=True, exist_ok=True)
    print(f"seed {arguments.seed}, ddp_timeout {arguments.ddp_timeout}, {os.cpu_count()} cores, {arguments.jobs} at a time", flush=True)
    begin, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="longspan-chaos-", dir=memory_disk()) as folder:
        places = pathlib.Path(folder)

        def end_at_once(*_):
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(128 + signal.SIGTERM)  # and with it goes whatever it has started
        signal.signal(signal.SIGTERM, end_at_once)
        runs.make_inputs(places / "inputs")
        undisturbed = Undisturbed(places, arguments.ddp_timeout)
        numbers = iter([arguments.case]) if arguments.case is not None else itertools.count(arguments.first)

        def play_next(number):
            case = drawing.draw_case(arguments.seed, number, arguments.fault)
            return case, Player(case, places, undisturbed, arguments.ddp_timeout).play(keep)

        def is_over():
            return (time.monotonic() - begin > 60 * arguments.minutes
                    or tables.totals(results)["faults"] >= arguments.faults)

        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool, open(keep / f"{arguments.seed}.jsonl", "a") as record:
            running = {pool.submit(play_next, number) for number in itertools.islice(numbers, arguments.jobs)}
            try:
                while running:
                    done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                    for future in done:
                        case, result = future.result()
                        results.append(result)
                        print(tables.lines_of(case, result), flush=True)
                        record.write(json.dumps(dataclasses.asdict(result)) + "\n")
                        record.flush()
                        if not is_over():
                            running |= {pool.submit(play_next, number) for number in itertools.islice(numbers, 1)}
            except KeyboardInterrupt:
                print("Interrupted; what is under way ends first.")
    print("\n" + tables.table(results, arguments.ddp_timeout) + "\n\n" + tables.summary(results, (time.monotonic() - begin) / 60))
    counts = tables.totals(results)
    return 1 if any(counts[name] for name in ("differences", "hangs", "wrong", "troubles")) else 0


if __name__ == "__main__":
    sys.exit(main())
