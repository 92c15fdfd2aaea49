"""Supervised fine-tuning on long rows, Longspan and its peers side by side: tokens/s, memory, and the
share of the machine's GEMM rate. README.md in this folder says what is measured and how."""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.environments import llamafactory_environment, versions
from speed.frameworks import FRAMEWORKS, Material, Setup
from speed.watch import Run
from speed.workload import (D_MLP, D_MODEL, HEADS, KV_HEADS, LAYERS, TOKENIZER_SIZE, Case,
                            make_checkpoint, make_rows, model_flops)

ROOT = Path(__file__).resolve().parent.parent
MIB = 2.0**20
ANSWER_SHARE, ANSWER_SHARE_BIG_VOCAB = 0.9, 0.5
BIG_VOCAB = 32768


def parse_arguments() -> argparse.Namespace:
    def numbers(kind):
        return lambda text: [kind(x) for x in text.split(",") if x]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=numbers(int), default=[2048, 8192],
                        help="tokens of a row (default 2048,8192)")
    parser.add_argument("--vocab", type=numbers(int), default=[TOKENIZER_SIZE, 151936],
                        help="vocabulary sizes; one above 32768 runs with the shortest row only "
                             "(default 4096,151936)")
    parser.add_argument("--uneven", type=int,
                        help="tokens of one more case's rows, for Longspan and LLaMA-Factory "
                             "with checkpointing: a length that is no multiple of 8, as seven "
                             "of eight real rows have (default: the longest of --rows less 2; "
                             "0 leaves it out)")
    parser.add_argument("--answer-share", type=float,
                        help="share of a row's tokens that have a label (default 0.9, and 0.5 "
                             "with a vocabulary above 32768)")
    parser.add_argument("--checkpointing", choices=["on", "off", "both"], default="both")
    parser.add_argument("--peers", type=numbers(str), default=["transformers", "llamafactory"])
    parser.add_argument("--no-longspan", action="store_true", help="the peers only")
    parser.add_argument("--longspan", type=Path,
                        default=Path(os.environ.get("LONGSPAN", ROOT / "build/longspan")),
                        help="the program (default $LONGSPAN, or build/longspan)")
    parser.add_argument("--llamafactory-env", type=Path,
                        default=ROOT / "build/peers/llamafactory",
                        help="virtual environment, made if missing (default "
                             "build/peers/llamafactory)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2, help="measured steps of a run")
    parser.add_argument("--warmup", type=int, default=1, help="steps before those, left out")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each framework")
    parser.add_argument("--max-rounds", type=int, default=4,
                        help="rounds are added up to this while a framework has fewer "
                             "undisturbed steps than --steps")
    parser.add_argument("--max-foreign", type=float, default=0.05,
                        help="a step during which other processes took more than this many "
                             "cores is left out (default 0.05)")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that a run may take")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench",
                        help="results, checkpoints, rows and logs (default build/bench)")
    options = parser.parse_args()
    for name in options.peers:
        if name not in FRAMEWORKS or name == "longspan":
            parser.error(f"--peers {name}: choose from transformers, llamafactory")
    if min(options.vocab) < TOKENIZER_SIZE:
        parser.error(f"--vocab {min(options.vocab)}: the tokenizer has {TOKENIZER_SIZE} tokens")
    if not options.no_longspan and not options.longspan.exists():
        parser.error(f"{options.longspan} is not there: run `make`, or give --longspan")
    return options


def make_cases(options: argparse.Namespace, names: list[str]) -> list[tuple[Case, list[str]]]:
    """Each case with the frameworks that run it."""
    checkpointing = {"on": [True], "off": [False], "both": [False, True]}[options.checkpointing]
    cases = []
    for vocab in options.vocab:
        big = vocab > BIG_VOCAB
        share = options.answer_share or (ANSWER_SHARE_BIG_VOCAB if big else ANSWER_SHARE)
        for tokens in [min(options.rows)] if big else options.rows:
            cases += [(Case(tokens, vocab, share, how), names) for how in checkpointing]
    uneven = max(options.rows) - 2 if options.uneven is None else options.uneven
    if uneven and "llamafactory" in names and True in checkpointing:
        share = options.answer_share or ANSWER_SHARE
        some = [name for name in names if name != "transformers"]
        cases.append((Case(uneven, min(options.vocab), share, True), some))
    return cases


def measure_gemm(options: argparse.Namespace, tokens: int) -> dict[str, float]:
    command = [sys.executable, str(ROOT / "benchmarks/speed/gemm_rate.py"),
               *map(str, (options.threads, min(tokens, 2048), D_MODEL, D_MLP))]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads),
                                "MKL_NUM_THREADS": str(options.threads)}
    return json.loads(subprocess.check_output(command, text=True, env=environment))


def measured_steps(runs: list[Run], warmup: int):
    return [step for run in runs for step in run.steps[warmup:]]


def undisturbed(runs: list[Run], options: argparse.Namespace):
    return [s for s in measured_steps(runs, options.warmup) if s.foreign <= options.max_foreign]


def measure_case(options, setup: Setup, case: Case, names: list[str], gemm: dict) -> dict:
    checkpoint = make_checkpoint(options.out / f"checkpoint-{case.vocab}", case.vocab)
    rows = options.out / f"rows-{case.tokens}-{case.answer_share:g}"
    labels = make_rows(rows, checkpoint, case, setup.steps)
    material = Material(case, checkpoint, rows, labels)
    print(f"\n== {case.name}: rows of {case.tokens} tokens, {labels} of them with a label",
          flush=True)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for round_ in range(max(options.rounds, options.max_rounds)):
        enough = all(len(undisturbed(r, options)) >= options.steps for r in runs.values())
        if round_ >= options.rounds and enough:
            break
        # The machine's rate is its best: whatever else runs only lowers a reading.
        for key, rate in measure_gemm(options, case.tokens).items():
            gemm[key] = max(gemm.get(key, 0.0), rate)
        for name in names if round_ % 2 == 0 else names[::-1]:
            run = FRAMEWORKS[name](setup, material)
            runs[name].append(run)
            steps = " ".join(f"{s.seconds:.2f}" + ("*" if s.foreign > options.max_foreign else "")
                             for s in run.steps[options.warmup:])
            print(f"   {name:<13} steps {steps} s, memory {run.level / MIB:.0f} -> "
                  f"{run.peak / MIB:.0f} MiB, first loss {run.steps[0].loss:.4f}", flush=True)
    check_same_work(runs)
    return {"case": case, "labels": labels, "runs": runs}


def check_same_work(runs: dict[str, list[Run]]) -> None:
    """Same checkpoint, same row, same labels: the first loss must be the same (peers print four
    digits)."""
    losses = {name: r[0].steps[0].loss for name, r in runs.items()}
    if max(losses.values()) - min(losses.values()) > 2e-3:
        raise SystemExit(f"The frameworks do not train the same thing: first losses {losses}")


def summarise_case(options, result: dict, gemm_rate: float) -> list[dict]:
    case, rows = result["case"], []
    flops = sum(model_flops(case, result["labels"]).values())
    for name, runs in result["runs"].items():
        good = undisturbed(runs, options)
        # All steps disturbed: a number all the same, marked as such.
        used = good or measured_steps(runs, options.warmup)
        seconds = statistics.median(s.seconds for s in used)
        rows.append({
            "framework": name, "seconds_per_step": seconds,
            "tokens_per_second": case.tokens / seconds,
            "steps_used": len(good), "steps_measured": len(measured_steps(runs, options.warmup)),
            "disturbed": not good,
            "peak_bytes": max(r.peak for r in runs),
            "level_bytes": statistics.median(r.level for r in runs),
            "growth_bytes": max(r.peak - r.level for r in runs),
            "gemm_share": flops / seconds / gemm_rate,
        })
    for row in rows[1:] if "longspan" in result["runs"] else []:
        row["longspan_speed_ratio"] = row["seconds_per_step"] / rows[0]["seconds_per_step"]
        row["longspan_growth_ratio"] = rows[0]["growth_bytes"] / max(1, row["growth_bytes"])
    return rows


def print_table(summaries: list[dict], gemm: dict, with_longspan: bool) -> None:
    print(f"\nfp32 GEMM rate: {gemm['model_shape'] / 1e9:.0f} GFLOP/s at the model's shape (the "
          f"100 % below), {gemm['square_2048'] / 1e9:.0f} at 2048 x 2048 x 2048")
    if with_longspan:
        print("Ratios: Longspan's speed over the peer's, and its memory growth over the peer's.")
    print("steps: undisturbed / measured. Peak and growth: the process's resident memory\n")
    line = "{:>6} {:>7} {:>7} {:>6}  {:<13} {:>9} {:>7} {:>6} {:>9} {:>8} {:>8}  {:>6} {:>7}"
    print(line.format("tokens", "vocab", "labels", "ckpt", "framework", "tokens/s", "s/step",
                      "GEMM%", "peak MiB", "growth", "steps", "speed", "growth"))
    for summary in summaries:
        case = summary["case"]
        for row in summary["frameworks"]:
            ratios = [f"{row[k]:.2f}x" if k in row else "" for k in
                      ("longspan_speed_ratio", "longspan_growth_ratio")]
            count = "disturbed" if row["disturbed"] else \
                f"{row['steps_used']}/{row['steps_measured']}"
            print(line.format(
                case.tokens, case.vocab, summary["labels"], "on" if case.checkpointing else "off",
                row["framework"], f"{row['tokens_per_second']:.0f}",
                f"{row['seconds_per_step']:.2f}", f"{100 * row['gemm_share']:.0f}",
                f"{row['peak_bytes'] / MIB:.0f}", f"{row['growth_bytes'] / MIB:.0f}", count,
                *ratios))


def describe_machine(options) -> dict:
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text()
                .splitlines() if line.startswith("model name")), platform.machine())
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_bytes": memory,
            "threads": options.threads, "kernel": platform.release(),
            "date": datetime.datetime.now().isoformat(timespec="seconds")}


def main() -> None:
    options = parse_arguments()
    options.out = options.out.absolute()
    names = ([] if options.no_longspan else ["longspan"]) + options.peers
    peer_versions = {"transformers": versions(Path(sys.executable), ["torch", "transformers"])}
    llamafactory_python = None
    if "llamafactory" in names:
        llamafactory_python = llamafactory_environment(options.llamafactory_env,
                                                       Path(sys.executable))
        peer_versions["llamafactory"] = versions(
            llamafactory_python, ["torch", "transformers", "llamafactory"])
    setup = Setup(options.longspan.absolute(), llamafactory_python, options.out, options.threads,
                  options.warmup + options.steps, options.limit)
    gemm: dict[str, float] = {}
    results = [measure_case(options, setup, case, some, gemm)
               for case, some in make_cases(options, names)]
    summaries = [{"case": r["case"], "labels": r["labels"],
                  "frameworks": summarise_case(options, r, gemm["model_shape"])} for r in results]
    print_table(summaries, gemm, not options.no_longspan)

    document = {
        "machine": describe_machine(options), "versions": peer_versions,
        "model": {"d_model": D_MODEL, "d_mlp": D_MLP, "layers": LAYERS, "heads": HEADS,
                  "kv_heads": KV_HEADS},
        "gemm_flops_per_second": gemm,
        "cases": [{
            **vars(s["case"]), "labels": s["labels"],
            "flops": model_flops(s["case"], s["labels"]), "frameworks": s["frameworks"],
            "runs": {name: [{"level_bytes": run.level, "peak_bytes": run.peak,
                             "steps": [vars(step) for step in run.steps]} for run in runs]
                     for name, runs in r["runs"].items()},
        } for s, r in zip(summaries, results)],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "sft_speed.json"
    path.write_text(json.dumps(document, indent=1))
    print(f"\nAll numbers: {path}")


if __name__ == "__main__":
    main()
