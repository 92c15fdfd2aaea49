"""Checkpoints that training waits for, and checkpoints that are written in the background (save_async), in turns: bytes,
seconds, and the time in which no step was computed. README.md in this folder says what is measured and how."""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from large_model import make_model
from speed.workload import Case, make_rows

ROOT = Path(__file__).resolve().parents[1]
# Llama-shaped: 11 million parameters a layer, and 8 million in the embedding and the head.
SHAPE = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096}
SAVES = 3  # the last one is at the end, and not measured
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Weights and states at a number of bytes a second for each process, as on a network disk.
SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
ssize_t write(int descriptor, const void *data, size_t size) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = 0;
  const ssize_t written = ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(descriptor, data, size);
  if (written > 0 && strstr(path, ".safetensors.")) usleep(1e6 * written / atof(getenv("DISK_BYTES")));
  return written;
}
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--layers", type=int, default=4, help="of the model (default 4)")
    parser.add_argument("--tokens", type=int, default=256, help="of a row (default 256)")
    parser.add_argument("--rows", type=int, default=2, help="of a step and process (default 2)")
    parser.add_argument("--every", type=int, default=6, help="steps between saves (default 6)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--disk", type=float, help="MB a second that each process writes at most (default: the disk's own rate)")
    parser.add_argument("--before", help="another build of Longspan, for checkpoints that training waits for")
    parser.add_argument("--keys", nargs="*", default=["bf16=true", "zero_stage=3"], help="more keys (default bf16=true zero_stage=3)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench" / "save", help="where it happens, and is written")
    parser.add_argument("--program", default=os.environ.get("LONGSPAN", str(ROOT / "build" / "longspan")))
    return parser.parse_args()


def slow_disk(options):
    if not options.disk:
        return {}
    source, library = options.work / "slow.c", options.work / "slow.so"
    source.write_text(SLOW)
    subprocess.check_call(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"])
    return {"LD_PRELOAD": str(library.resolve()), "DISK_BYTES": str(options.disk * 1e6)}


def run_once(program, config, output, keys, environment, num_steps):
    """The seconds of each step with what follows it, and what the run says of its saves: bytes, seconds, seconds waited."""
    shutil.rmtree(output, ignore_errors=True)
    log, ends = output.with_suffix(".log"), []
    with open(log, "w") as file:
        run = subprocess.Popen([program, "train", config, f"output_dir={output}", *keys], stdout=file, stderr=file,
                               env=os.environ | environment)
    lines = output / "trainer_log.jsonl"
    while run.poll() is None:
        done = lines.read_text().count("current_steps") if lines.exists() else 0
        ends += [time.monotonic()] * (min(done, num_steps) - len(ends))
        time.sleep(0.005)
    text = log.read_text()
    if run.returncode != 0:
        raise SystemExit(text[-3000:])
    said = [(float(size) * UNITS[unit], float(seconds), float(waited or seconds)) for size, unit, seconds, waited in
            re.findall(r"Saved .*: ([\d.]+) (\w+) in ([\d.]+) s(?:, of which the steps waited ([\d.]+) s)?", text)]
    shutil.rmtree(output)
    return [later - earlier for earlier, later in zip(ends, ends[1:])], said[: SAVES - 1]


def main():
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    shape = SHAPE | {"num_hidden_layers": options.layers}
    model = make_model(options, shape)
    data = options.work / f"rows-{options.tokens}"
    if not data.exists():
        make_rows(data, model, Case(options.tokens, shape["vocab_size"], 0.5, True), 64)
    config = options.work / "run.yaml"
    config.write_text(json.dumps({
        "model_name_or_path": str(model), "stage": "sft", "do_train": True, "finetuning_type": "full", "dataset": "rows",
        "dataset_dir": str(data), "cutoff_len": options.tokens, "template": "chatml", "save_strategy": "steps",
        "save_steps": options.every, "logging_steps": 1, "max_steps": SAVES * options.every, "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": options.rows, "learning_rate": 1e-5, "device": "cpu", "nproc_per_node": options.ranks}))
    kinds = {"waits": (options.program, []), "background": (options.program, ["save_async=true"])}
    if options.before:
        kinds = {"before": (options.before, [])} | kinds
    every = options.every
    environment, results = slow_disk(options), {kind: ([], []) for kind in kinds}
    for number in range(options.rounds):
        for kind in list(kinds)[:: 1 if number % 2 == 0 else -1]:
            program, keys = kinds[kind]
            steps, said = run_once(program, config, options.work / kind, options.keys + keys, environment,
                                   SAVES * options.every)
            results[kind][0].append(steps)
            results[kind][1].extend(said)
    # A step after which nothing was saved or written: the interval number i begins with the end of step i + 1.
    idle = [steps[i] for kind in kinds if kind != "background" for steps in results[kind][0]
            for i in range(1, len(steps)) if (i + 1) % every != 0]
    step = statistics.median(idle)
    print(f"{options.ranks} processes, a step takes {step:.2f} s; of each save:")
    print(f"{'':12} {'MB':>7} {'seconds':>8} {'longest step':>13} {'all steps':>10} {'says it waited':>15}")
    rows = {}
    for kind, (runs, said) in results.items():
        saves = [i for i in range(every - 1, SAVES * every - 1, every)]
        rows[kind] = dict(
            bytes=statistics.median(size for size, _, _ in said) if said else None,
            seconds=statistics.median(seconds for _, seconds, _ in said) if said else None,
            stall=statistics.median(steps[i] - step for steps in runs for i in saves),
            cost=statistics.median(sum(steps[every - 1:]) - step * len(steps[every - 1:]) for steps in runs) / len(saves),
            waited=statistics.median(waited for _, _, waited in said) if said else None)
        row = rows[kind]
        shown = [f"{value:.2f}" if value is not None else "-" for value in (row["seconds"], row["stall"], row["cost"], row["waited"])]
        size = f"{row['bytes'] / 1e6:.0f}" if row["bytes"] else "-"
        print(f"{kind:12} {size:>7} {shown[0]:>8} {shown[1]:>13} {shown[2]:>10} {shown[3]:>15}")
    wait, go_on = rows["waits"], rows["background"]
    if options.before:
        print(f"A save that training waits for takes {wait['stall'] / rows['before']['stall']:.2f} of the time of {options.before}")
    print(f"In the background the steps wait {go_on['waited'] / go_on['seconds']:.1%} of a save's seconds, and "
          f"{go_on['waited'] / wait['seconds']:.1%} of those of a save that training waits for; all steps together take "
          f"{go_on['cost'] / wait['cost']:.2f} of the time that saves add to them otherwise")
    (options.work / "save_speed.json").write_text(json.dumps({"step": step, "kinds": rows, "runs": results}, indent=1))


if __name__ == "__main__":
    main()
