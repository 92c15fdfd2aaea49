"""Frameworks side by side on the same work: they take turns, disturbed steps are left out, and a table
and a JSON file say what came of it. What the programs that compare trainers share."""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from speed.environments import llamafactory_environment, versions
from speed.frameworks import FRAMEWORKS, Material, Setup
from speed.instructions import INSTRUCTIONS, missing, processor
from speed.watch import Run, Step
from speed.workload import D_MLP, D_MODEL, HEADS, KV_HEADS, LAYERS, Case

ROOT = Path(__file__).resolve().parent.parent.parent
MIB = 2.0**20


@dataclasses.dataclass
class Work:
    """A case, ready to be run."""

    material: Material
    tokens: int  # of a step
    flops: dict[str, dict[str, float]]  # of a step, by framework; its keys are who runs the case
    heading: str

    @property
    def case(self) -> Case:
        return self.material.case


def numbers(kind):
    """An argument that is a list with commas."""
    return lambda text: [kind(x) for x in text.split(",") if x]


def add_arguments(parser: argparse.ArgumentParser, peers: list[str]) -> None:
    parser.add_argument("--peers", type=numbers(str), default=peers)
    parser.add_argument("--no-longspan", action="store_true", help="the peers only")
    parser.add_argument("--longspan", type=Path,
                        default=Path(os.environ.get("LONGSPAN", ROOT / "build/longspan")),
                        help="the program (default $LONGSPAN, or build/longspan)")
    parser.add_argument("--before", type=Path,
                        help="another build of Longspan, which is run in the same turns")
    parser.add_argument("--llamafactory-env", type=Path,
                        default=ROOT / "build/peers/llamafactory",
                        help="virtual environment, made if missing (default "
                             "build/peers/llamafactory)")
    parser.add_argument("--threads", type=int, default=2,
                        help="with 1, processor time counts, which other programs disturb little")
    parser.add_argument("--instructions", choices=INSTRUCTIONS,
                        help="hold all frameworks to these (default: what each chooses)")
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


def parse_options(parser: argparse.ArgumentParser, peers: list[str]) -> argparse.Namespace:
    options = parser.parse_args()
    for name in options.peers:
        if name not in peers:
            parser.error(f"--peers {name}: choose from {', '.join(peers)}")
    if not options.no_longspan and not options.longspan.exists():
        parser.error(f"{options.longspan} is not there: run `make`, or give --longspan")
    if options.before and not options.before.exists():
        parser.error(f"--before {options.before} is not there")
    options.out = options.out.absolute()
    if options.instructions:
        if lacks := missing(options.instructions):
            parser.error(f"--instructions {options.instructions}: this processor lacks {lacks}")
        os.environ.update(INSTRUCTIONS[options.instructions][1])
    return options


def own_builds(options: argparse.Namespace) -> list[str]:
    """Those of the frameworks that are builds of Longspan."""
    return ([] if options.no_longspan else ["longspan"]) + (["longspan-before"] if options.before else [])


def prepare(options, packages: list[str]) -> tuple[Setup, dict]:
    """What all runs share, and the peers' versions: `packages` are those of this interpreter."""
    peer_versions = {"transformers": versions(Path(sys.executable), packages)}
    python = None
    if "llamafactory" in options.peers:
        python = llamafactory_environment(options.llamafactory_env, Path(sys.executable))
        peer_versions["llamafactory"] = versions(python, [*packages, "llamafactory"])
    setup = Setup(options.longspan.absolute(), python, options.out, options.threads,
                  options.warmup + options.steps, options.limit,
                  options.before and options.before.absolute())
    return setup, peer_versions


def measure_gemm(options: argparse.Namespace, tokens: int) -> dict[str, float]:
    command = [sys.executable, str(ROOT / "benchmarks/speed/gemm_rate.py"),
               *map(str, (options.threads, min(tokens, 2048), D_MODEL, D_MLP))]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads),
                                "MKL_NUM_THREADS": str(options.threads)}
    return json.loads(subprocess.check_output(command, text=True, env=environment))


def measured_steps(runs: list[Run], warmup: int) -> list[Step]:
    return [step for run in runs for step in run.steps[warmup:]]


def seconds_of(step: Step, options: argparse.Namespace) -> float:
    """A framework of one thread is timed by the processor time that it takes."""
    return step.own if options.threads == 1 else step.seconds


def is_disturbed(step: Step, options: argparse.Namespace) -> bool:
    return options.threads > 1 and step.foreign > options.max_foreign


def undisturbed(runs: list[Run], options: argparse.Namespace) -> list[Step]:
    return [s for s in measured_steps(runs, options.warmup) if not is_disturbed(s, options)]


def measure(options, setup: Setup, work: Work, gemm: dict, same_work) -> dict[str, list[Run]]:
    """Runs of each framework. `same_work(runs)` raises SystemExit where they did not compute the
    same; `gemm` is raised to the best rate seen."""
    print(f"\n== {work.heading}", flush=True)
    runs: dict[str, list[Run]] = {name: [] for name in work.flops}
    for round_ in range(max(options.rounds, options.max_rounds)):
        enough = all(len(undisturbed(r, options)) >= options.steps for r in runs.values())
        if round_ >= options.rounds and enough:
            break
        # The machine's rate is its best: whatever else runs only lowers a reading.
        for key, rate in measure_gemm(options, work.case.tokens).items():
            gemm[key] = max(gemm.get(key, 0.0), rate)
        for name in list(runs) if round_ % 2 == 0 else list(runs)[::-1]:
            run = FRAMEWORKS[name](setup, work.material)
            runs[name].append(run)
            steps = " ".join(f"{seconds_of(s, options):.2f}" + "*" * is_disturbed(s, options)
                             for s in run.steps[options.warmup:])
            print(f"   {name:<15} steps {steps} s, memory {run.level / MIB:.0f} -> "
                  f"{run.peak / MIB:.0f} MiB, first loss {run.steps[0].loss:.4f}", flush=True)
        if round_ == 0:
            same_work(runs)
    return runs


def check_first_step(runs: dict[str, list[Run]], key: str, absolute=0.0, relative=0.0) -> None:
    """A number of the first step must be the same for all frameworks, to `absolute` or `relative`."""
    values = {name: r[0].steps[0].logged[key] for name, r in runs.items()}
    first = next(iter(values.values()))
    # A NaN is near nothing.
    if not all(abs(v - first) <= max(absolute, relative * abs(first)) for v in values.values()):
        raise SystemExit(f"The frameworks do not train the same thing: {key} of the first step is "
                         f"{values}")


def summarise(options, work: Work, runs: dict[str, list[Run]], gemm_rate: float) -> list[dict]:
    rows = []
    for name, own_runs in runs.items():
        measured, good = measured_steps(own_runs, options.warmup), undisturbed(own_runs, options)
        # All steps disturbed: a number all the same, marked as such.
        seconds = statistics.median(seconds_of(s, options) for s in good or measured)
        flops = sum(work.flops[name].values())
        rows.append({
            "framework": name, "seconds_per_step": seconds,
            "tokens_per_second": work.tokens / seconds,
            "steps_used": len(good), "steps_measured": len(measured), "disturbed": not good,
            "peak_bytes": max(r.peak for r in own_runs),
            "level_bytes": statistics.median(r.level for r in own_runs),
            "growth_bytes": max(r.peak - r.level for r in own_runs),
            "gemm_share": flops / seconds / gemm_rate,
        })
    for row in rows[1:] if "longspan" in runs else []:
        row["longspan_speed_ratio"] = row["seconds_per_step"] / rows[0]["seconds_per_step"]
        row["longspan_growth_ratio"] = rows[0]["growth_bytes"] / max(1, row["growth_bytes"])
    return rows


def print_table(works: list[Work], summaries: list[list[dict]], gemm: dict, columns: dict,
                with_longspan: bool) -> None:
    """`columns`: what is said of a work, by title."""
    print(f"\nfp32 GEMM rate: {gemm['model_shape'] / 1e9:.0f} GFLOP/s at the model's shape (the "
          f"100 % below), {gemm['square_2048'] / 1e9:.0f} at 2048 x 2048 x 2048")
    if with_longspan:
        print("Ratios: Longspan's speed over the row's, and its memory growth over the row's.")
    print("steps: undisturbed / measured. Peak and growth: the process's resident memory\n")
    line = "{:>7} " * len(columns) + \
        "{:>5}  {:<15} {:>9} {:>7} {:>6} {:>9} {:>8} {:>9}  {:>6} {:>7}"
    print(line.format(*columns, "ckpt", "framework", "tokens/s", "s/step", "GEMM%", "peak MiB",
                      "growth", "steps", "speed", "growth"))
    for work, rows in zip(works, summaries):
        for row in rows:
            ratios = [f"{row[k]:.2f}x" if k in row else "" for k in
                      ("longspan_speed_ratio", "longspan_growth_ratio")]
            count = "disturbed" if row["disturbed"] else \
                f"{row['steps_used']}/{row['steps_measured']}"
            print(line.format(
                *(column(work) for column in columns.values()),
                "on" if work.case.checkpointing else "off", row["framework"],
                f"{row['tokens_per_second']:.0f}", f"{row['seconds_per_step']:.2f}",
                f"{100 * row['gemm_share']:.0f}", f"{row['peak_bytes'] / MIB:.0f}",
                f"{row['growth_bytes'] / MIB:.0f}", count, *ratios))


def describe_machine(options) -> dict:
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {"cpu": processor()[0], "cores": os.cpu_count(), "memory_bytes": memory,
            "threads": options.threads, "instructions": options.instructions or "as chosen", "kernel": platform.release(),
            "date": datetime.datetime.now().isoformat(timespec="seconds")}


def describe_case(work: Work, runs: dict[str, list[Run]], rows: list[dict]) -> dict:
    return {
        **vars(work.case), "labels": work.material.labels, "flops": work.flops, "frameworks": rows,
        "runs": {name: [{"level_bytes": run.level, "peak_bytes": run.peak,
                         "steps": [vars(step) for step in run.steps]} for run in own_runs]
                 for name, own_runs in runs.items()},
    }


def goal_of(work: Work, rows: list[dict], what: str, value: float, goal: float, least: bool) -> dict:
    """A goal and its result. `rows`: those of summarise() that the value is made of. `least`: the value is to be the
    goal at least, not at most."""
    return {"case": work.case.name, "what": what, "value": value, "goal": goal,
            "reached": value >= goal if least else value <= goal,
            "disturbed": any(row["disturbed"] for row in rows), "at": "least" if least else "most"}


def print_goals(goals: list[dict]) -> None:
    if goals:
        print("\nGoals")
    for g in goals:
        print(f"  {'reached' if g['reached'] else 'MISSED':<8} {g['value']:.2f}x (at {g['at']} "
              f"{g['goal']:g}x): {g['what']}, {g['case']}{' DISTURBED' if g['disturbed'] else ''}")


def compare(options, works: list[Work], setup: Setup, peer_versions: dict, columns: dict,
            same_work, name: str, goals=None) -> None:
    """Runs everything, prints the table and writes NAME.json. `goals(works, summaries)` lists goals, which are printed
    and written as well."""
    gemm: dict[str, float] = {}
    done: list[tuple[Work, dict]] = []
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{name}.json"
    document = {
        "machine": describe_machine(options), "versions": peer_versions,
        "model": {"d_model": D_MODEL, "d_mlp": D_MLP, "layers": LAYERS, "heads": HEADS,
                  "kv_heads": KV_HEADS},
        "gemm_flops_per_second": gemm, "cases": [],
    }
    for work in works:
        done.append((work, measure(options, setup, work, gemm, same_work)))
        # After every case, so that one that fails takes no other with it; the rate may have risen.
        summaries = [summarise(options, *case, gemm["model_shape"]) for case in done]
        document["cases"] = [describe_case(*case, rows) for case, rows in zip(done, summaries)]
        path.write_text(json.dumps(document, indent=1))
    print_table(works, summaries, gemm, columns, not options.no_longspan)
    if goals:
        document["goals"] = goals(works, summaries)
        print_goals(document["goals"])
        path.write_text(json.dumps(document, indent=1))
    print(f"\nAll numbers: {path}")
