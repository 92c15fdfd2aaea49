"""Training on rows of very different lengths: a number of processes for each row (sequence_parallel_size: auto) beside one
number for all rows. README.md in this folder says what is measured and how."""

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.slow_link import SlowLink  # noqa: E402
from speed.workload import TOKENIZER_SIZE, model_config, train_tokenizer  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="processes (default 4)")
    parser.add_argument("--hidden", type=int, default=512, help="hidden size of the model, a multiple of 64 (default 512)")
    parser.add_argument("--layers", type=int, default=8, help="of the model (default 8)")
    parser.add_argument("--shortest", type=int, default=256, help="tokens of the shortest row (default 256)")
    parser.add_argument("--longest", type=int, default=16384, help="tokens of the longest row (default 16384)")
    parser.add_argument("--median", type=float, default=1024, help="of the log-normal lengths (default 1024)")
    parser.add_argument("--sigma", type=float, default=1.2, help="of the logarithm (default 1.2)")
    parser.add_argument("--rows", type=int, default=32, help="of a step, a multiple of the processes (default 32)")
    parser.add_argument("--steps", type=int, default=3, help="of a run; the first is not measured (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, in turn (default 3)")
    parser.add_argument("--batch", type=int, default=1,
                        help="examples that are computed together where one number of processes shares all rows (default 1)")
    parser.add_argument("--link-rate", type=float, metavar="MBIT",
                        help="two machines (network namespaces) with half of the processes each, and this link between them")
    parser.add_argument("--mode", default="auto", help="sequence_parallel_mode (default auto)")
    parser.add_argument("--longspan", type=Path, default=Path(os.environ.get("LONGSPAN", ROOT / "build/longspan")))
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/ragged_rows")
    return parser.parse_args()


def make_model(options: argparse.Namespace) -> Path:
    """A folder with random weights; kept between calls. The ratios of the sizes are those of `make bench`."""
    model = options.out / f"model-{options.hidden}-{options.layers}"
    if not model.exists():
        tokenizer = options.out / "tokenizer"
        train_tokenizer(tokenizer)
        heads = max(1, options.hidden // 64)
        config = model_config(TOKENIZER_SIZE) | dict(
            hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4, num_hidden_layers=options.layers,
            num_attention_heads=heads, num_key_value_heads=max(1, heads // 4), max_position_embeddings=1 << 20)
        (options.out / "config.json").write_text(json.dumps(config))
        subprocess.run([options.longspan, "init", "--config", options.out / "config.json", "--tokenizer", tokenizer,
                        "--output", model], check=True, stdout=subprocess.DEVNULL)
    return model


def write_rows(options: argparse.Namespace, folder: Path) -> int:
    """Texts of random words that are one token each. Each step has one row of the longest kind. Returns the tokens of a step."""
    words = [word[1:] for word in json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
             if word.startswith("\u0120") and word[1:].isalpha() and len(word) > 3]
    rng = random.Random(0)
    rows, totals = [], []
    for _ in range(options.steps):
        lengths = [options.longest - 8] + [
            min(options.longest - 8, max(options.shortest, round(options.median * rng.lognormvariate(0, options.sigma))))
            for _ in range(options.rows - 1)]
        totals.append(sum(lengths))
        rows += [dict(text=" " + " ".join(rng.choices(words, k=length))) for length in lengths]
    (options.out / "rows.json").write_text(json.dumps(rows))
    (options.out / "dataset_info.json").write_text(json.dumps(dict(rows=dict(file_name="rows.json", columns=dict(prompt="text")))))
    return statistics.mean(totals)


def start(options: argparse.Namespace, config: Path, link: SlowLink | None) -> tuple[int, str]:
    """Runs all processes. Returns the largest exit status and what the first process prints."""
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // options.ranks))}
    here = options.ranks // (link.nodes if link else 1)
    place = {"WORLD_SIZE": options.ranks, "LOCAL_WORLD_SIZE": here, "MASTER_PORT": free_port(),
             "MASTER_ADDR": link.address if link else "127.0.0.1"}
    processes = []
    for rank in range(options.ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank % here}
        variables = {name: str(value) for name, value in (place | own).items()} | threads
        prefix = []
        if link:
            prefix = link.prefix(rank // here)
            variables |= link.variables(rank // here)
        processes.append(subprocess.Popen([*prefix, str(options.longspan), "train", str(config)], text=True,
                                          stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                          stderr=subprocess.STDOUT, env=os.environ | variables))
    text, _ = processes[0].communicate()
    return max(abs(process.wait()) for process in processes), text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def run(options: argparse.Namespace, model: Path, name: str, keys: dict, link: SlowLink | None) -> dict:
    """Seconds of each step after the first, tokens/s over them, and the lines about the rows."""
    output = options.out / name
    settings = dict(model_name_or_path=str(model), stage="pt", packing=False, do_train=True, finetuning_type="full",
                    dataset="rows", dataset_dir=str(options.out), output_dir=str(output), overwrite_output_dir=True,
                    cutoff_len=options.longest, max_steps=options.steps, logging_steps=1,
                    save_strategy="no", disable_shuffling=True, learning_rate=1e-4, disable_tqdm=True,
                    sequence_parallel_mode=options.mode, **keys)
    config = options.out / f"{name}.yaml"
    config.write_text(json.dumps(settings))
    status, text = start(options, config, link)
    if status != 0:
        sys.exit(f"{name} failed:\n{text[-3000:]}")
    log = [json.loads(line) for line in (output / "trainer_log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    losses = [entry["loss"] for entry in json.loads((output / "trainer_state.json").read_text())["log_history"] if "loss" in entry]
    clock = [seconds_of(entry) for entry in steps]
    tokens = steps[-1]["total_tokens"] - steps[0]["total_tokens"]
    lines = [line for line in text.splitlines() if line.startswith("Dealt rows")]
    return dict(rate=tokens / (clock[-1] - clock[0]), losses=losses, lines=lines)


def seconds_of(entry: dict) -> float:
    """Of elapsed tokens: the log's throughput is tokens by seconds since the start."""
    return entry["total_tokens"] / entry["throughput"]


def main() -> None:
    options = parse_arguments()
    if options.rows % options.ranks or options.rows % options.batch:
        sys.exit("--rows must be a multiple of --ranks and of --batch")
    if options.link_rate and options.ranks % 2:
        sys.exit("--link-rate makes two machines: --ranks must be even")
    options.out.mkdir(parents=True, exist_ok=True)
    model = make_model(options)
    tokens = write_rows(options, model)
    kinds = {
        "fixed": dict(sequence_parallel_size=options.ranks, per_device_train_batch_size=options.batch,
                      gradient_accumulation_steps=options.rows // options.batch),
        "auto": dict(sequence_parallel_size="auto", per_device_train_batch_size=1,
                     gradient_accumulation_steps=options.rows // options.ranks),
    }
    print(f"{options.rows} rows a step, {options.shortest} to {options.longest} tokens, about {tokens:,.0f} tokens a step, on "
          f"{options.ranks} processes", flush=True)
    with contextlib.ExitStack() as stack:
        link = None
        if options.link_rate:
            link = stack.enter_context(SlowLink())
            link.throttle(options.link_rate * 1e6)
        compare(options, model, kinds, link)


def compare(options: argparse.Namespace, model: Path, kinds: dict, link: SlowLink | None) -> None:
    """Alternates the runs."""
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(options.rounds):
        losses = {}
        for name, keys in kinds.items() if number % 2 == 0 else reversed(kinds.items()):
            result = run(options, model, name, keys, link)
            rates[name].append(result["rate"])
            losses[name] = result["losses"]
            print(f"  {name:6} {result['rate']:10,.0f} tokens/s {' '.join(result['lines'])}", flush=True)
        apart = max(abs(a - b) / b for a, b in zip(losses["auto"], losses["fixed"], strict=True))
        print(f"  losses differ by {apart:.1e} at most", flush=True)
        if apart > 1e-5:
            sys.exit("the losses must agree to 1e-5")
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(f"auto beside {options.ranks} processes for each row: {medians['auto'] / medians['fixed']:.2f}x the tokens/s")


if __name__ == "__main__":
    main()
