"""transformers' Trainer whose ranks share the rows, by longspan.parallelize_trainer and by its peers: DeepSpeed's
UlyssesSPAttentionHF, accelerate's context parallelism, and axolotl-ringmaster's Ulysses. Prints the time of a step, the
growth of memory, and ratios. README.md in this folder describes the measurement."""

import argparse
import dataclasses
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.environments import trainer_environment, versions
from speed.ranks import Local, run_ranks
from speed.slow_link import SlowLink
from speed.workload import Case, make_checkpoint, make_rows, training_flops

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks/speed/python_worker.py"
PEERS = ["deepspeed", "accelerate", "ringmaster"]
OURS = ["longspan", "longspan_fused", "longspan_saved"]  # the last one: with gradient checkpointing alone
LARGEST_DIFFERENCE = 5e-3  # relative, of the loss of the first step: ringmaster rounds the number of labels per rank


@dataclasses.dataclass(frozen=True)
class Heads:
    query: int
    kv: int


EVEN, WHOLE, UNEVEN = Heads(8, 4), Heads(8, 8), Heads(7, 7)


def parse_arguments() -> argparse.Namespace:
    def items(kind):
        return lambda text: [kind(x) for x in text.split(",") if x]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of each row (default 8192)")
    parser.add_argument("--ranks", type=items(int), default=[2, 4], help="numbers of processes (default 2,4)")
    parser.add_argument("--peers", type=items(str), default=PEERS, help=f"of {','.join(PEERS)}, or none (default: all)")
    parser.add_argument("--own", type=items(str), default=OURS, help=f"of {','.join(OURS)} (default: all)")
    parser.add_argument("--mode", default="auto", help="longspan's sequence_parallel_mode (default auto)")
    parser.add_argument("--vocab", type=int, default=4096, help="tokens of the vocabulary (default 4096)")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--bf16", action="store_true", help="bf16=True of Trainer: autocast, with weights in fp32")
    parser.add_argument("--steps", type=int, default=3, help="steps of a run; the first does not count (default 3)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side, in turns (default 2)")
    parser.add_argument("--no-uneven", action="store_true", help="leaves out the cases of 8 and 7 heads")
    parser.add_argument("--link-rate", type=float, help="Mbit/s of a link between two ranks that are each in a network "
                        "namespace (root; with 2 ranks only)")
    parser.add_argument("--package", type=Path, default=ROOT / "build/python", help="folder of the package `longspan`")
    parser.add_argument("--peers-env", type=Path, default=ROOT / "build/peers/trainer",
                        help="virtual environment, made if missing (default build/peers/trainer)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/python")
    options = parser.parse_args()
    options.peers = [] if options.peers == ["none"] else options.peers
    for name, given, known in (("peers", options.peers, PEERS), ("own", options.own, OURS)):
        if unknown := set(given) - set(known):
            parser.error(f"--{name} {','.join(unknown)}: choose from {', '.join(known)}")
    if not (options.package / "longspan").is_dir():
        parser.error(f"{options.package}: no package `longspan` is there: run `make`, or give --package")
    if options.own == [OURS[-1]] and not options.checkpointing:
        parser.error(f"--own {OURS[-1]} is for --checkpointing")
    if options.link_rate and options.ranks != [2]:
        parser.error("--link-rate is for --ranks 2")
    options.package, options.out = options.package.absolute(), options.out.absolute()
    return options


@dataclasses.dataclass
class Side:
    """The runs of one way on one case."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    growth: list[int] = dataclasses.field(default_factory=list)  # bytes, of all ranks
    loss: float = 0.0
    foreign: float = 0.0

    @property
    def step(self) -> float:
        return statistics.median(self.seconds)

    @property
    def mib(self) -> float:
        return statistics.median(self.growth) / 2**20


def run(options, python: Path, way: str, ranks: int, heads: Heads, place, side: Side) -> None:
    checkpoint = make_checkpoint(options.out / f"model-{options.vocab}-{heads.query}-{heads.kv}", options.vocab,
                                 heads=(heads.query, heads.kv))
    rows = options.out / f"rows-{options.tokens}"
    if not (rows / "tokens.json").exists():
        make_rows(rows, checkpoint, Case(options.tokens, options.vocab, 0.9, False), 16)
    folder = options.out / f"{way}-{ranks}-{heads.query}-{heads.kv}"
    folder.mkdir(parents=True, exist_ok=True)
    threads = max(1, os.cpu_count() // ranks)
    job = dict(way=way, ranks=ranks, row_tokens=options.tokens, mode=options.mode, package=str(options.package),
               checkpoint=str(checkpoint), tokens=str(rows / "tokens.json"), output=str(folder / "result"),
               output_dir=str(folder / "run"), steps=options.steps, checkpointing=options.checkpointing, bf16=options.bf16,
               learning_rate=1e-4, threads=threads)
    (folder / "job.json").write_text(json.dumps(job))
    side.foreign = max(side.foreign, run_ranks([str(python), str(WORKER), str(folder / "job.json")], ranks, threads,
                                               folder / "log.txt", place))
    results = [json.loads(Path(f"{job['output']}.{rank}").read_text()) for rank in range(ranks)]
    side.seconds += results[0]["seconds"][1:]
    side.growth.append(sum(result["peak"] - result["level"] for result in results))
    side.loss = results[0]["losses"][0]


def measure(options, python: Path, title: str, runs: dict[str, tuple[str, Heads]], ranks: int, place) -> dict[str, Side]:
    print(f"\n== {title}", flush=True)
    sides = {name: Side() for name in runs}
    for round_ in range(options.rounds):
        for name in list(runs) if round_ % 2 == 0 else list(runs)[::-1]:
            way, heads = runs[name]
            run(options, python, way, ranks, heads, place, sides[name])
            print(f"   round {round_ + 1}, {name}: {sides[name].seconds[-1]:.2f} s; others took up to "
                  f"{sides[name].foreign:.2f} cores", flush=True)
    return sides


def compare(options, python: Path, ranks: int, place) -> list[dict]:
    link = f", {options.link_rate:g} Mbit/s" if options.link_rate else ""
    more = "".join(f", {name}" for name in ("checkpointing", "bf16") if getattr(options, name))
    title = f"{options.tokens} tokens, vocabulary {options.vocab}, {EVEN.query}/{EVEN.kv} heads, {ranks} ranks{more}{link}"
    own = [way for way in options.own if options.checkpointing or way != OURS[-1]]
    sides = measure(options, python, title, {way: (way, EVEN) for way in [*own, *options.peers]}, ranks, place)
    ours = sides[own[0]]
    print("\nThe right columns: how many times as fast one of Longspan's ways is, and its growth beside.")
    print(f"{'way':<14} {'s/step':>8} {'tokens/s':>9} {'growth MiB':>11}" + "".join(f" {way:>16}" for way in own))
    rows = []
    for name, side in sides.items():
        if abs(side.loss / ours.loss - 1) > LARGEST_DIFFERENCE:
            raise SystemExit(f"{name} does not train the same: its first loss is {side.loss}, and {own[0]}'s is {ours.loss}")
        ratios = {way: dict(faster=side.step / sides[way].step, growth=sides[way].mib / side.mib) for way in own}
        rows.append(dict(case=title, way=name, seconds=side.seconds, growth=side.growth, foreign=side.foreign, ratios=ratios))
        print(f"{name:<14} {side.step:>8.2f} {options.tokens / side.step:>9.0f} {side.mib:>11.0f}"
              + "".join(f" {one['faster']:>8.2f}x {one['growth']:>5.2f}x" for one in ratios.values()))
    return rows


def uneven(options, python: Path, ranks: int, place) -> dict:
    """Speed per FLOP of heads that do not divide by the ranks, beside heads that do."""
    title = f"{options.tokens} tokens, 7 and 8 heads, {ranks} ranks"
    sides = measure(options, python, title, dict(even=("longspan", WHOLE), uneven=("longspan", UNEVEN)), ranks, place)
    case = Case(options.tokens, options.vocab, 0.9, False)
    work = {name: training_flops(case, round(0.9 * options.tokens), (heads.query, heads.kv))
            for name, heads in (("even", WHOLE), ("uneven", UNEVEN))}
    rates = {name: work[name] / side.step for name, side in sides.items()}
    ratio = rates["uneven"] / rates["even"]
    print(f"8 heads: {sides['even'].step:.2f} s/step; 7 heads: {sides['uneven'].step:.2f} s/step; "
          f"FLOP/s of 7 heads beside 8: {ratio:.3f}")
    return dict(case=title, seconds={name: side.seconds for name, side in sides.items()}, ratio=ratio)


def main() -> None:
    options = parse_arguments()
    python = trainer_environment(options.peers_env, Path(sys.executable))
    results = []
    for ranks in options.ranks:
        if options.link_rate:
            with SlowLink() as link:
                link.throttle(options.link_rate * 1e6)
                results += compare(options, python, ranks, link)
        else:
            results += compare(options, python, ranks, Local())
            if not options.no_uneven:
                results.append(uneven(options, python, ranks, Local()))
    path = options.out / ("slow_link.json" if options.link_rate else "python_speed.json")
    path.write_text(json.dumps(dict(versions=versions(python, ["torch", "transformers", "accelerate", "deepspeed",
                                                                "axolotl-ringmaster"]), results=results), indent=1))
    print(f"\nAll numbers: {path}")


if __name__ == "__main__":
    main()
