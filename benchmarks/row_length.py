"""How device memory grows with the row: the peak of a training step on one row of 8k to 128k tokens, all that saves
memory off and on, on the model of examples/demo.py. README.md in this folder says what is measured and how."""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from demo import MODEL, VOCAB_SIZE  # noqa: E402

# What a user switches for long rows. The fused head is always on.
OFF = {"disable_gradient_checkpointing": True}
ON = {"offload_activations": True, "tiled_mlp": 64}
ON_SEVERAL = {"zero_stage": 3, "offload_optimizer": True, "offload_params": True}
GOAL_TOKENS, GOAL = 65536, 0.2
MIB = 2**20


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=numbers, default=[8192, 16384, 32768, 65536, 131072],
                        help="of the row (default 8192,16384,32768,65536,131072)")
    parser.add_argument("--ranks", type=numbers, default=[1, 2],
                        help="processes that share the row (default 1,2)")
    parser.add_argument("--mode", default="ulysses", help="of sharing it (default ulysses)")
    parser.add_argument("--documents", type=int, default=1,
                        help="of which a row is packed: attention takes so much less time, memory is the same (default 1)")
    parser.add_argument("--threads", type=int, help="of a process (default the cores, shared out)")
    parser.add_argument("--without-zero", action="store_true",
                        help="several processes hold all states each")
    parser.add_argument("--keys", nargs="*", default=[], metavar="KEY=VALUE",
                        help="more keys of the configurations that are on")
    parser.add_argument("--longspan", type=Path,
                        default=Path(os.environ.get("LONGSPAN", ROOT / "build/longspan")))
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/row_length")
    parser.add_argument("--picture", type=Path, help="a PNG (default OUT/row_length.png)")
    return parser.parse_args()


def run(command: list, log: Path, threads: int) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with open(log, "w") as output:
        result = subprocess.run([str(part) for part in command], stdout=output,
                                stderr=subprocess.STDOUT, env=environment)
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed; the end of {log}:\n"
                 + "\n".join(log.read_text().splitlines()[-25:]))


def make_model(options: argparse.Namespace) -> Path:
    """The demo's shape; its text is random words, of which there is enough for the longest row."""
    folder = options.out / "data"
    folder.mkdir(parents=True)
    chance = random.Random(0)
    words = ["".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(2, 7)))
             for _ in range(4000)]
    text = " ".join(chance.choice(words) for _ in range(max(options.tokens) // options.documents + 1000))
    (folder / "corpus.txt").write_text(text[:2_000_000])
    rows = [{"instruction": "Write.", "output": text}] * options.documents
    (folder / "row.json").write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text(json.dumps({"row": {"file_name": "row.json"}}))
    (folder / "config.json").write_text(json.dumps(MODEL | {"max_position_embeddings": max(options.tokens)}))
    model = folder / "model"
    run([options.longspan, "tokenizer", "--files", folder / "corpus.txt", "--vocab-size", VOCAB_SIZE,
         "--output", folder / "tokenizer"], folder / "tokenizer.log", 1)
    run([options.longspan, "init", "--config", folder / "config.json", "--tokenizer",
         folder / "tokenizer", "--output", model, "--seed", 42], folder / "init.log", 1)
    return model


def measure(options: argparse.Namespace, model: Path, tokens: int, ranks: int, on: bool) -> dict:
    name = f"{tokens}-{ranks}-{'on' if on else 'off'}"
    keys = {
        "model_name_or_path": str(model), "stage": "sft", "do_train": True, "finetuning_type": "full",
        "dataset": "row", "dataset_dir": str(options.out / "data"), "template": "chatml",
        "cutoff_len": tokens // options.documents, "output_dir": str(options.out / name), "overwrite_output_dir": True,
        "logging_steps": 1, "save_strategy": "no", "device": "cpu", "per_device_train_batch_size": options.documents,
        "gradient_accumulation_steps": 1, "learning_rate": 1e-4, "max_steps": 1,
        "nproc_per_node": ranks,
    }
    if ranks > 1:
        keys |= {"sequence_parallel_size": ranks, "sequence_parallel_mode": options.mode}
    keys |= ON if on else OFF
    if on and ranks > 1 and not options.without_zero:
        keys |= ON_SEVERAL
    config = options.out / f"{name}.yaml"
    config.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items()))
    start = time.time()
    run([options.longspan, "train", config, *(options.keys if on else [])],
        options.out / f"{name}.log", options.threads or max(1, (os.cpu_count() or 1) // ranks))
    memory = json.loads((options.out / name / "memory.json").read_text())
    log = json.loads((options.out / name / "trainer_state.json").read_text())["log_history"]
    assert memory["facts"]["num_tokens"] == tokens, memory["facts"]
    return {
        "tokens": tokens, "ranks": ranks, "on": on, "seconds": time.time() - start,
        "device": max(rank["device"] for rank in memory["measured"]),
        "host": max(rank["host"] for rank in memory["measured"]),
        "resident": max(rank["resident"] for rank in memory["measured"]),
        "account": memory["device"], "loss": log[0]["loss"], "grad_norm": log[0]["grad_norm"],
    }


def slope(rows: list[dict], key: str) -> tuple[float, float]:
    """Least squares of bytes by tokens of the row, and the largest deviation from that line."""
    xs, ys = [row["tokens"] for row in rows], [row[key] for row in rows]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    rise = (sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys))
            / max(1, sum((x - mean_x) ** 2 for x in xs)))
    return rise, max(abs(mean_y + rise * (x - mean_x) - y) / y for x, y in zip(xs, ys))


def report(results: list[dict]) -> bool:
    """Prints the table; whether the goal is reached where it was measured."""
    print("\nPeak of a rank's tensors in device memory, MiB; host: what is offloaded; account: by "
          "formula; resident: the whole process\n")
    print("  tokens ranks      off       on  on/off     host  account  resident off / on   seconds off / on")
    reached = True
    by_case = {(r["tokens"], r["ranks"], r["on"]): r for r in results}
    for tokens, ranks, on in sorted(by_case, key=lambda case: (case[1], case[0])):
        if not on or (tokens, ranks, False) not in by_case:
            continue
        off, saved = by_case[tokens, ranks, False], by_case[tokens, ranks, True]
        ratio = saved["device"] / off["device"]
        if tokens == GOAL_TOKENS:
            reached = reached and ratio <= GOAL
        for key, limit in (("loss", 1e-5), ("grad_norm", 1e-4)):
            if abs(off[key] - saved[key]) > limit * abs(off[key]):
                sys.exit(f"{tokens} tokens: {key} is {off[key]} off and {saved[key]} on")
        print(f"{tokens:8,} {ranks:5} {off['device'] / MIB:8.1f} {saved['device'] / MIB:8.1f} "
              f"{ratio:7.3f} {saved['host'] / MIB:8.1f} {saved['account'] / MIB:8.1f} "
              f"{off['resident'] / MIB:10.0f} /{saved['resident'] / MIB:6.0f} "
              f"{off['seconds']:12.1f} /{saved['seconds']:6.1f}")
    for ranks in sorted({r["ranks"] for r in results}):
        for on in (False, True):
            rows = sorted((r for r in results if r["ranks"] == ranks and r["on"] == on),
                          key=lambda r: r["tokens"])
            if len(rows) < 2:
                continue
            rise, deviation = slope(rows, "device")
            print(f"{ranks} rank{'s' if ranks > 1 else ' '} {'on ' if on else 'off'}: {rise / 1024:.2f} KiB more for each token "
                  f"of the row, {rise * ranks / MODEL['num_hidden_layers'] / 1024:.2f} KiB a token of the rank and layer; "
                  f"off the straight line by at most {100 * deviation:.1f} %")
    print(f"\n{'reached' if reached else 'MISSED'}: at most {GOAL}x at {GOAL_TOKENS:,} tokens")
    return reached


def draw(options: argparse.Namespace, results: list[dict]) -> None:
    program = options.longspan.parent / "plot_curves"
    if not program.exists():
        subprocess.run([ROOT / ".venv/bin/cmake", "--build", options.longspan.parent, "--target",
                        "plot_curves"], check=True, stdout=subprocess.DEVNULL)

    def curve(ranks: int, on: bool, key: str, label: str, dashed: bool = False) -> dict:
        rows = sorted((r for r in results if r["ranks"] == ranks and r["on"] == on),
                      key=lambda r: r["tokens"])
        return {"label": label, "dashed": dashed, "x": [r["tokens"] / 1024 for r in rows],
                "y": [r[key] / MIB for r in rows]}

    panels = []
    for ranks in sorted({r["ranks"] for r in results}):
        curves = [curve(ranks, False, "device", "all off"), curve(ranks, True, "device", "all on"),
                  curve(ranks, True, "account", "all on, by the account", True),
                  curve(ranks, True, "host", "in host memory then")]
        panels.append({"title": "1 process" if ranks == 1 else f"{ranks} processes share the row",
                       "x_label": "thousands of tokens in the row (1024)",
                       "y_label": "peak of a process (MiB)", "curves": curves})
    picture = options.picture or options.out / "row_length.png"
    subprocess.run([program, picture], input=json.dumps(panels), text=True, check=True)
    print(f"Picture: {picture}")


def main() -> None:
    options = parse_arguments()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    model = make_model(options)
    results = []
    for ranks in options.ranks:
        for tokens in options.tokens:
            for on in (False, True):
                results.append(measure(options, model, tokens, ranks, on))
                r = results[-1]
                print(f"{tokens:8,} tokens, {ranks} rank{'s' if ranks > 1 else ''}, {'on' if on else 'off'}: "
                      f"{r['device'] / MIB:.1f} MiB, {r['seconds']:.0f} s", flush=True)
                (options.out / "row_length.json").write_text(json.dumps(results, indent=1))
    draw(options, results)
    reached = report(results)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
