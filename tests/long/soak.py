"""Trains on several processes for a while, saving and evaluating, and looks at what grows: `make soak MINUTES=60`.

Samples resident memory (RSS; what of it is the process's own, what is pages of files) and open descriptors of each
process, fits a line to the second half of the memory, and prints a table; soak.json and soak.png go to the folder.
Fails where a process grows by more than 1 MB a minute, or ends with more descriptors than it had."""

import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from conftest import Running, settings_of, write_dataset, write_model  # noqa: E402
from faults import wait_for  # noqa: E402

LIMIT = 1.0  # MB a minute


def megabytes(pid):
    """Resident memory by kind: all of it, the process's own, and pages of files."""
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(fields[field].split()[0]) / 1024
            for name, field in (("megabytes", "VmRSS"), ("own", "RssAnon"), ("files", "RssFile"))}


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def slope(points):
    """MB a minute, by least squares."""
    mean_t = sum(t for t, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    return 60 * sum((t - mean_t) * (y - mean_y) for t, y in points) / spread


def draw(samples, path):
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 3.5))
    for rank, points in enumerate(samples):
        axis.plot([p["seconds"] / 60 for p in points], [p["megabytes"] for p in points], label=f"rank {rank}")
    axis.set(xlabel="minutes", ylabel="resident memory, MB", ylim=(0, None))
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--keys", nargs="*", default=[], help="more keys of the configuration, key=value as JSON")
    parser.add_argument("--folder", help="where to put the run; left out: a temporary one")
    arguments = parser.parse_args()
    place = pathlib.Path(arguments.folder or tempfile.mkdtemp(prefix="longspan-soak-"))
    place.mkdir(parents=True, exist_ok=True)
    model, data = place / "model", place / "data"
    write_model(model, "qwen2", hidden_size=448, intermediate_size=1024, num_hidden_layers=4)
    write_dataset(data, num_rows=64, shortest=50, longest=400)
    write_dataset(data, num_rows=8, seed=1, name="held_out")
    settings = settings_of(
        model, data, place / "out", max_steps=10**7, gradient_accumulation_steps=2, sequence_parallel_size=2,
        learning_rate=1e-5, logging_steps=10, save_strategy="steps", save_steps=20, save_total_limit=2,
        eval_dataset="held_out", eval_strategy="steps", eval_steps=30, overwrite_output_dir=True, zero_stage=3)
    settings |= {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in arguments.keys)}
    running = Running(settings, arguments.processes)
    wait_for(running, "Saved", seconds=300)
    pids = [rank.pid for rank in running.ranks]
    start, samples = time.monotonic(), [[] for _ in pids]
    while time.monotonic() - start < 60 * arguments.minutes:
        for points, pid in zip(samples, pids):
            points.append(dict(seconds=time.monotonic() - start, descriptors=descriptors(pid)) | megabytes(pid))
        time.sleep(min(5, arguments.minutes * 60 / 100))
    for rank in running.ranks:
        rank.send_signal(signal.SIGTERM)
    finished = running.wait(timeout=120)
    assert set(finished.statuses) == {0}, finished.text

    steps = json.loads((place / "out" / "trainer_log.jsonl").read_text().splitlines()[-1])["current_steps"]
    print(f"{arguments.minutes:g} minutes, {steps} steps, {steps // 20} checkpoints, {steps // 30} evaluations")
    print(f"{'rank':>4} {'MB at first':>12} {'MB at last':>11} {'of its own':>11} {'MB a minute':>12} {'descriptors':>24}")
    failed, report = False, []
    for rank, points in enumerate(samples):
        later = [(p["seconds"], p["megabytes"]) for p in points[len(points) // 2:]]
        growth, opened = slope(later), [p["descriptors"] for p in points]
        half = len(opened) // 2
        failed |= growth > LIMIT or max(opened[half:]) > max(opened[:half])
        report.append(dict(rank=rank, megabytes_per_minute=growth, descriptors=[min(opened), max(opened)]))
        print(f"{rank:>4} {points[0]['megabytes']:>12.1f} {points[-1]['megabytes']:>11.1f} {points[-1]['own']:>11.1f} {growth:>12.3f} "
              f"{f'{opened[0]} to {opened[-1]}, most {max(opened)}':>24}")
    (place / "soak.json").write_text(json.dumps(dict(minutes=arguments.minutes, steps=steps, ranks=report,
                                                     samples=samples)))
    drawn = draw(samples, place / "soak.png")
    print(f"{'soak.json and soak.png' if drawn else 'soak.json'} are in {place}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
