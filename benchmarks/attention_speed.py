"""Sequence-parallel attention, Longspan and its peers side by side: time forward and backward of every
method, and ratios to undistributed attention, to yunchang's ring and to DeepSpeed's
DistributedAttention. README.md in this folder says what is measured and how."""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.environments import attention_environment, versions
from speed.ranks import Local, run_ranks
from speed.slow_link import SlowLink

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks/speed/attention_worker.py"
PEERS = ["deepspeed-ulysses", "yunchang-ulysses", "yunchang-ring", "yunchang-zigzag-ring"]
ALONE = ["torch-sdpa", "torch-flash"]
# A pass of such a row takes half a minute: the methods that the goals name, once a run.
LONG_ROW = 16384
LONG_METHODS = ["ulysses", "async-ulysses", "balanced-ulysses", "dummy-head-ulysses", "usp",
                "zigzag-ring"]
LARGEST_ERROR = 1e-4  # fp32 against fp64: a wrong result is off by far more


@dataclasses.dataclass(frozen=True)
class Case:
    title: str
    tokens: int
    ranks: int
    heads: int
    kv_heads: int
    head_dim: int
    methods: tuple[str, ...]  # Longspan's; empty: all
    peers: tuple[str, ...]
    waves: tuple[int, ...] = (1,)
    layer: bool = False
    undistributed: bool = True

    @property
    def is_long(self) -> bool:
        return self.tokens > LONG_ROW

    def repeats(self, options) -> int:
        return 1 if self.is_long else options.repeats

    def rounds(self, options) -> int:
        return min(2, options.rounds) if self.is_long else options.rounds


def parse_arguments() -> argparse.Namespace:
    def items(kind):
        return lambda text: [kind(x) for x in text.split(",") if x]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=items(int), default=[8192, 32768],
                        help="tokens of the row (default 8192,32768)")
    parser.add_argument("--methods", type=items(str), default=[],
                        help="Longspan's methods (default: all; above 16384 tokens those that "
                             "goals name)")
    parser.add_argument("--waves", type=items(int), default=[1, 2],
                        help="head waves, a row each (default 1,2; with --slow-link 1,2,4)")
    parser.add_argument("--peers", type=items(str), default=PEERS,
                        help=f"of {','.join(PEERS)}, or none (default: all)")
    parser.add_argument("--uneven-tokens", type=int, default=8192,
                        help="tokens of the case of 14 query and 2 kv heads on 4 ranks (default "
                             "8192; 0 leaves it out)")
    parser.add_argument("--slow-link", action="store_true",
                        help="instead: two ranks in two network namespaces on a link so slow that "
                             "Ulysses' exchange takes as long as its attention (root)")
    parser.add_argument("--link-rate", type=float,
                        help="Mbit/s of the slow link (default: measured and computed)")
    parser.add_argument("--threads", type=int, default=1, help="of a rank (default 1)")
    parser.add_argument("--repeats", type=int, default=3, help="passes of a run that count")
    parser.add_argument("--rounds", type=int, default=3,
                        help="runs of each side (default 3; above 16384 tokens at most 2, of one "
                             "pass each)")
    parser.add_argument("--max-rounds", type=int, default=5,
                        help="rounds are added up to this while a side has no undisturbed one")
    parser.add_argument("--max-foreign", type=float, default=0.05,
                        help="a run during which other processes took more than this many cores "
                             "is left out where there is another (default 0.05)")
    parser.add_argument("--longspan", type=Path,
                        default=Path(os.environ.get("LONGSPAN", ROOT / "build/longspan")),
                        help="the program (default $LONGSPAN, or build/longspan)")
    parser.add_argument("--peers-env", type=Path, default=ROOT / "build/peers/attention",
                        help="virtual environment, made if missing (default build/peers/attention)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/attention",
                        help="results and logs (default build/bench/attention)")
    options = parser.parse_args()
    if options.peers == ["none"]:
        options.peers = []
    for name in options.peers:
        if name not in PEERS:
            parser.error(f"--peers {name}: choose from {', '.join(PEERS)}")
    if not options.longspan.exists():
        parser.error(f"{options.longspan} is not there: run `make`, or give --longspan")
    for tokens in options.tokens:
        if tokens % 8 != 0:
            parser.error(f"--tokens {tokens}: the peers want a multiple of 8")
    options.longspan, options.out = options.longspan.absolute(), options.out.absolute()
    return options


@dataclasses.dataclass
class Measured:
    """A method's times over all runs that count."""

    name: str
    forward: list[float] = dataclasses.field(default_factory=list)
    backward: list[float] = dataclasses.field(default_factory=list)
    errors: dict = dataclasses.field(default_factory=dict)
    details: dict = dataclasses.field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return statistics.median(f + b for f, b in zip(self.forward, self.backward))


def run_longspan(options, case: Case, place, folder: Path) -> tuple[float, dict]:
    words = ["bench", "attention", "--device", "cpu", "--tokens", case.tokens, "--heads", case.heads, "--kv-heads",
             case.kv_heads, "--head-dim", case.head_dim, "--repeats", case.repeats(options),
             # A pass that counts bytes and memory has gone before.
             "--warmup", 0 if case.is_long else 1, "--threads", options.threads, "--waves", ",".join(map(str, case.waves)), "--output", folder]
    words += ["--methods", *case.methods] if case.methods else []
    words += ["--layer"] if case.layer else []
    words += [] if case.undistributed else ["--no-undistributed"]
    foreign = run_ranks([str(options.longspan), *map(str, words)], case.ranks, options.threads,
                        folder / "log.txt", place)
    return foreign, json.loads((folder / "attention_bench.json").read_text())


def run_peers(options, case: Case, place, folder: Path, python: Path) -> tuple[float, dict]:
    folder.mkdir(parents=True, exist_ok=True)
    job = {
        "tokens": case.tokens, "heads": case.heads, "kv_heads": case.kv_heads,
        "head_dim": case.head_dim, "threads": options.threads, "warmup": 1,
        "repeats": case.repeats(options), "check_tokens": min(case.tokens, 512),
        "methods": (ALONE if case.undistributed else []) + list(case.peers),
        "output": str(folder / "result.json"),
    }
    (folder / "job.json").write_text(json.dumps(job))
    foreign = run_ranks([str(python), str(WORKER), str(folder / "job.json")], case.ranks,
                        options.threads, folder / "log.txt", place)
    return foreign, json.loads((folder / "result.json").read_text())


def collect(runs: list[tuple[float, dict]], max_foreign: float) -> list[Measured]:
    """Of the undisturbed runs, or of all where there is none."""
    used = [result for foreign, result in runs if foreign <= max_foreign] or \
        [result for _, result in runs]
    methods: dict[str, Measured] = {}
    for result in used:
        for row in result["methods"]:
            measured = methods.setdefault(row["name"], Measured(row["name"]))
            measured.forward += row["forward_seconds_of_repeats"]
            measured.backward += row["backward_seconds_of_repeats"]
            measured.errors = row["relative_errors"]
            measured.details = row
    return list(methods.values())


def measure_case(options, case: Case, place, python: Path | None) -> dict:
    print(f"\n== {case.title}", flush=True)
    folder = options.out / case.title.replace(",", "").replace(" ", "-").replace("/", "-")
    sides = {"longspan": lambda: run_longspan(options, case, place, folder / "longspan")}
    if case.peers or (case.undistributed and python):
        sides["peers"] = lambda: run_peers(options, case, place, folder / "peers", python)
    runs: dict[str, list] = {name: [] for name in sides}
    rounds = case.rounds(options)
    for round_ in range(max(rounds, options.max_rounds)):
        quiet = all(any(foreign <= options.max_foreign for foreign, _ in r) for r in runs.values())
        if round_ >= rounds and quiet:
            break
        for name in list(sides) if round_ % 2 == 0 else list(sides)[::-1]:
            runs[name].append(sides[name]())
            foreign = runs[name][-1][0]
            mark = " *disturbed*" if foreign > options.max_foreign else ""
            print(f"   round {round_ + 1}, {name}: others took {foreign:.2f} cores{mark}",
                  flush=True)
    ours = collect(runs["longspan"], options.max_foreign)
    theirs = collect(runs.get("peers", []), options.max_foreign)
    disturbed = any(all(foreign > options.max_foreign for foreign, _ in r) for r in runs.values())
    result = {"case": case, "ours": ours, "theirs": theirs, "disturbed": disturbed}
    check_same_work(result)
    print_table(result)
    return result


def check_same_work(result: dict) -> None:
    """Every method's output and gradients are those of undistributed attention in fp64."""
    for method in result["ours"] + result["theirs"]:
        worst = max(method.errors.values())
        if not worst < LARGEST_ERROR:
            raise SystemExit(f"{method.name} does not compute the same attention: relative errors "
                             f"{method.errors}")


def find(result: dict, name: str) -> Measured | None:
    return next((m for m in result["ours"] + result["theirs"] if m.name == name), None)


def print_table(result: dict) -> None:
    case = result["case"]
    ours, theirs = result["ours"], result["theirs"]
    references = [("undistr.", find(result, "undistributed")),
                  ("yc ring", find(result, "yunchang-ring")),
                  ("yc zigzag", find(result, "yunchang-zigzag-ring")),
                  ("DeepSpeed", find(result, "deepspeed-ulysses"))]
    references = [(title, m) for title, m in references if m]
    line = "{:<30} {:>9} {:>9} {:>9} {:>8}" + " {:>9}" * len(references)
    print()
    print(line.format("method", "forward", "backward", "tokens/s", "error",
                      *(f"/{title}" for title, _ in references)))
    rows = [("longspan " + m.name, m) for m in ours] + [(m.name, m) for m in theirs]
    for name, method in rows:
        ratios = [f"{m.seconds / method.seconds:.3f}" for _, m in references]
        print(line.format(name, f"{1e3 * statistics.median(method.forward):.1f}",
                          f"{1e3 * statistics.median(method.backward):.1f}",
                          f"{case.tokens / method.seconds:.0f}",
                          f"{max(method.errors.values()):.0e}", *ratios))
    print("milliseconds, medians; ratios are speeds: above 1 is faster than the column's name")
    if result["disturbed"]:
        print("DISTURBED: other processes computed during every run of a side")


def goal(result: dict, ours: str, other: str, at_least: float) -> dict | None:
    mine, reference = find(result, ours), find(result, other)
    if mine is None or reference is None:
        return None
    return {"case": result["case"].title, "method": ours, "against": other,
            "ratio": reference.seconds / mine.seconds, "goal": at_least,
            "disturbed": result["disturbed"]}


def kinds(result: dict, *words: str) -> list[str]:
    """Longspan's methods whose names hold one of the words."""
    return [m.name for m in result["ours"] if any(word in m.name for word in words)]


def print_goals(goals: list[dict | None]) -> list[dict]:
    goals = [g for g in goals if g]
    if goals:
        print("\nGoals")
    for g in goals:
        verdict = "reached" if g["ratio"] >= g["goal"] else "MISSED"
        print(f"  {verdict:<8} {g['ratio']:.3f} of {g['against']} (goal {g['goal']:g}): "
              f"{g['method']}, {g['case']}{' DISTURBED' if g['disturbed'] else ''}")
    return goals


def fast_cases(options) -> list[Case]:
    cases = []
    for tokens in options.tokens:
        is_long = tokens > LONG_ROW
        methods = options.methods or (LONG_METHODS if is_long else [])
        waves = options.waves[:1] if is_long else options.waves
        cases.append(Case(f"{tokens} tokens, 8/2 heads, 2 ranks", tokens, 2, 8, 2, 64,
                          tuple(methods), tuple(options.peers), tuple(waves)))
    if options.uneven_tokens:
        methods = options.methods or ["balanced-ulysses", "dummy-head-ulysses", "xtuner-ulysses"]
        cases.append(Case(f"{options.uneven_tokens} tokens, 14/2 heads, 4 ranks",
                          options.uneven_tokens, 4, 14, 2, 64, tuple(methods), ()))
    return cases


def run_fast(options, python: Path | None) -> tuple[list[dict], list]:
    results = [measure_case(options, case, Local(), python if case.ranks == 2 else None)
               for case in fast_cases(options)]
    goals = []
    for result in results:
        if result["case"].ranks == 2:
            # XTuner's computes heads twice where they do not divide; here they do.
            for name in kinds(result, "ulysses", "zigzag", "usp"):
                goals.append(goal(result, name, "undistributed", 0.97))
                goals.append(goal(result, name, "yunchang-ring", 1.35))
        else:
            goals.append(goal(result, "balanced-ulysses", "dummy-head-ulysses", 1.08))
            goals.append(goal(result, "balanced-ulysses", "xtuner-ulysses", 1.6))
    return results, goals


def matching_rate(options, link: SlowLink, tokens: int) -> float:
    """Bits per second at which a rank's bytes of Ulysses take as long as its attention."""
    case = Case(f"{tokens} tokens, fast link", tokens, 2, 8, 2, 64, ("ulysses",), (),
                undistributed=False)
    _, result = run_longspan(options, case, link, options.out / f"rate-{tokens}")
    row = result["methods"][0]
    seconds = max(row["kernel_seconds_of_ranks"])
    sent = sum(row["sent_bytes"].values()) / case.ranks
    print(f"Ulysses, {tokens} tokens: attention takes {1e3 * seconds:.0f} ms, each rank sends "
          f"{sent / 2**20:.1f} MiB", flush=True)
    return 8 * sent / seconds


def run_slow(options, python: Path | None) -> tuple[list[dict], list]:
    results, goals = [], []
    methods = options.methods or ["ulysses", "balanced-ulysses", "zigzag-ring"]
    waves = options.waves if options.waves != [1, 2] else [1, 2, 4]
    with SlowLink() as link:
        for tokens in options.tokens:
            rate = 1e6 * options.link_rate if options.link_rate else \
                matching_rate(options, link, tokens)
            link.throttle(rate)
            print(f"Link: {rate / 1e6:.0f} Mbit/s each way", flush=True)
            place = f"{tokens} tokens, 8/2 heads, 2 ranks, {rate / 1e6:.0f} Mbit/s"
            attention = measure_case(
                options, Case(place, tokens, 2, 8, 2, 64, tuple(methods), tuple(options.peers),
                              tuple(waves), undistributed=False), link, python)
            layer = measure_case(
                options, Case(f"{place}, layer", tokens, 2, 8, 2, 64,
                              ("ulysses", "async-ulysses"), (), layer=True,
                              undistributed=False), link, None)
            link.throttle(100e9)
            results += [attention, layer]
            for name in kinds(attention, "waves", "ring"):
                goals.append(goal(attention, name, "deepspeed-ulysses", 1.3))
            goals.append(goal(layer, "async-ulysses", "ulysses", 1.1))
    return results, goals


def main() -> None:
    options = parse_arguments()
    python = None
    peer_versions = {}
    if options.peers:
        python = attention_environment(options.peers_env, Path(sys.executable))
        peer_versions = versions(python, ["torch", "deepspeed", "yunchang"])
    results, goals = (run_slow if options.slow_link else run_fast)(options, python)
    goals = print_goals(goals)
    document = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(),
                    "date": datetime.datetime.now().isoformat(timespec="seconds")},
        "versions": peer_versions, "threads": options.threads,
        "cases": [{
            **dataclasses.asdict(r["case"]), "disturbed": r["disturbed"],
            "longspan": [{**m.details, "forward": m.forward, "backward": m.backward}
                         for m in r["ours"]],
            "peers": [{**m.details, "forward": m.forward, "backward": m.backward}
                      for m in r["theirs"]],
        } for r in results],
        "goals": goals,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("attention_slow_link.json" if options.slow_link else
                          "attention_speed.json")
    path.write_text(json.dumps(document, indent=1))
    print(f"\nAll numbers: {path}")


if __name__ == "__main__":
    main()
