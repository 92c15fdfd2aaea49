"""Training on given rollouts (stage grpo), Longspan beside TRL, and groups whose prompt is computed once beside the
same rollouts as documents of their own: time of an update and memory. README.md in this folder says what is measured
and how."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.comparison import (Work, add_arguments, check_first_step, compare, goal_of, numbers, own_builds,
                              parse_options, prepare)
from speed.frameworks import Material
from speed.rollouts import GroupCase, group_case, group_flops, make_groups
from speed.workload import TOKENIZER_SIZE, make_checkpoint

PEERS = ["trl-grpo", "trl-grpo-single"]
SEPARATE = "longspan-separate"
SPEED_GOAL = 3.0  # Longspan's speed over the fastest of TRL's settings
GROWTH_GOAL = 0.4  # Longspan's memory growth over the smallest of TRL's settings
SHARED_GOAL = 4.0  # speed of groups over separate documents
# A reader's trial: each option that the command line leaves out.
QUICK = {"prompt": 192, "generations": 4, "answer": 64, "long_prompt": 512, "long_generations": 4, "long_answer": 64,
         "steps": 1, "rounds": 1, "max_rounds": 1}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=numbers(str), default=["peers", "separate"],
                        help="peers: beside TRL on one process; separate: beside separate documents on --ranks "
                             "processes (default: both)")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens, beside TRL (default 2048)")
    parser.add_argument("--generations", type=int, default=8, help="answers of a group, beside TRL (default 8)")
    parser.add_argument("--answer", type=int, default=512, help="tokens, beside TRL (default 512)")
    parser.add_argument("--beta", type=numbers(float), default=[0.0, 0.04],
                        help="of KL, beside TRL; above 0 there is a reference model (default 0,0.04)")
    parser.add_argument("--long-prompt", type=int, default=8192, help="tokens, beside separate documents (default 8192)")
    parser.add_argument("--long-generations", type=int, default=16,
                        help="answers of a group, beside separate documents (default 16)")
    parser.add_argument("--long-answer", type=int, default=256,
                        help="tokens, beside separate documents (default 256)")
    parser.add_argument("--ranks", type=int, default=2,
                        help="processes that share a row, beside separate documents; each has an equal share of "
                             "--threads (default 2)")
    parser.add_argument("--vocab", type=int, default=TOKENIZER_SIZE, help=f"vocabulary size (default {TOKENIZER_SIZE})")
    parser.add_argument("--checkpointing", choices=["on", "off", "both"], default="on",
                        help="gradient checkpointing (default on)")
    parser.add_argument("--quick", action="store_true", help="short prompts and answers, one measured step: a minute")
    add_arguments(parser, PEERS)
    if "--quick" in sys.argv:
        parser.set_defaults(**QUICK)
    options = parse_options(parser, PEERS)
    if unknown := set(options.cases) - {"peers", "separate"}:
        parser.error(f"--cases {','.join(unknown)}: choose from peers, separate")
    if options.vocab < TOKENIZER_SIZE:
        parser.error(f"--vocab {options.vocab}: the tokenizer has {TOKENIZER_SIZE} tokens")
    return options


def make_cases(options: argparse.Namespace) -> list[tuple[GroupCase, list[str]]]:
    """Each case with the frameworks that run it."""
    ours = own_builds(options)
    checkpointing = {"on": [True], "off": [False], "both": [False, True]}[options.checkpointing]
    cases = []
    if "peers" in options.cases:
        cases += [(group_case(options.prompt, options.generations, options.answer, options.vocab, beta, how),
                   ours + options.peers) for beta in options.beta for how in checkpointing]
    if "separate" in options.cases and ours:
        cases += [(group_case(options.long_prompt, options.long_generations, options.long_answer, options.vocab, 0.0,
                              how, options.ranks), [*ours, SEPARATE]) for how in checkpointing]
    return cases


def make_work(options, case: GroupCase, names: list[str], num_groups: int) -> Work:
    checkpoint = make_checkpoint(options.out / f"checkpoint-{case.vocab}", case.vocab)
    rows = options.out / f"rollouts-{case.prompt}-{case.generations}x{case.answer}"
    labels = make_groups(rows, checkpoint, case, num_groups)
    keys = {"stage": "grpo", "loss_type": "dapo", "beta": case.beta, "num_generations": case.generations}
    if case.ranks > 1:
        keys |= {"nproc_per_node": case.ranks, "sequence_parallel_size": case.ranks}
    flops = {name: group_flops(case, name in own_builds(options)) for name in names}
    return Work(Material(case, checkpoint, rows, labels, keys), case.generations * case.tokens, flops,
                f"{case.name}: {case.generations} answers of {case.answer} tokens to a prompt of {case.prompt}, "
                f"{case.ranks} process{'es' if case.ranks > 1 else ''}")


def check_same_work(runs) -> None:
    """The ratio of the first step is 1 and advantages sum to 0, so its loss is about 0 whatever the rollouts are: the
    entropy and the gradient say whether all train on the same ones."""
    check_first_step(runs, "loss", absolute=2e-3)  # TRL rounds to four digits
    check_first_step(runs, "entropy", relative=1e-5)
    check_first_step(runs, "grad_norm", relative=1e-3)


def goals(works: list[Work], summaries: list[list[dict]]) -> list[dict]:
    """Those that the works and frameworks of this call can say something of."""
    found = []
    for work, rows in zip(works, summaries):
        by_name = {row["framework"]: row for row in rows}
        peers = [by_name[name] for name in PEERS if name in by_name]
        if "longspan" not in by_name:
            continue
        if peers:
            found.append(goal_of(work, rows, "speed over TRL's fastest setting",
                                 min(p["longspan_speed_ratio"] for p in peers), SPEED_GOAL, True))
            found.append(goal_of(work, rows, "memory growth over TRL's smallest",
                                 max(p["longspan_growth_ratio"] for p in peers), GROWTH_GOAL, False))
        if SEPARATE in by_name:
            found.append(goal_of(work, rows, "speed of a shared prompt over separate documents",
                                 by_name[SEPARATE]["longspan_speed_ratio"], SHARED_GOAL, True))
    return found


def main() -> None:
    options = parse_arguments()
    setup, peer_versions = prepare(options, ["torch", "transformers", "trl"])
    works = [make_work(options, case, names, setup.steps) for case, names in make_cases(options)]
    columns = {"prompt": lambda w: w.case.prompt, "answers": lambda w: f"{w.case.generations}x{w.case.answer}",
               "beta": lambda w: f"{w.case.beta:g}", "ranks": lambda w: w.case.ranks}
    compare(options, works, setup, peer_versions, columns, check_same_work, "rollout_speed", goals)


if __name__ == "__main__":
    main()
