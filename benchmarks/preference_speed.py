"""Direct preference optimization on long rows, Longspan and its peers side by side: tokens/s, memory,
the share of the machine's GEMM rate, and what a shared prompt saves. README.md in this folder says
what is measured and how."""

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.comparison import (Work, add_arguments, check_first_step, compare, goal_of, numbers,
                              own_builds, parse_options, prepare)
from speed.frameworks import Material
from speed.workload import (TOKENIZER_SIZE, Case, make_checkpoint, make_pairs,
                            preference_flops)

PEERS = ["trl", "llamafactory"]
SHARED = "longspan-shared"
LONG_PROMPT = 0.75
KEYS = {"stage": "dpo", "pref_loss": "sigmoid", "pref_beta": 0.1}
# Rows of at least so many tokens: Longspan's tokens/s over LLaMA-Factory's.
SPEED_GOALS = {8192: 2.2, 2048: 1.5}
GROWTH_GOAL = 0.4  # Longspan's memory growth over LLaMA-Factory's, for those rows
SHARED_GOALS = {0.5: 1.15, LONG_PROMPT: 1.3}  # by prompt share, for rows of at least:
SHARED_GOAL_TOKENS = 8192


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=numbers(int), default=[2048, 8192],
                        help="tokens of a row, which is the prompt and one answer; a pair is two "
                             "rows (default 2048,8192)")
    parser.add_argument("--prompt-share", type=float, default=0.5,
                        help="the prompt's share of a row (default 0.5)")
    parser.add_argument("--long-prompt", type=int,
                        help="tokens of one more case's rows, of which the prompt is three "
                             "quarters: Longspan alone, with and without shared prompts "
                             "(default: the longest of --rows; 0 leaves it out)")
    parser.add_argument("--vocab", type=int, default=TOKENIZER_SIZE,
                        help=f"vocabulary size (default {TOKENIZER_SIZE})")
    parser.add_argument("--checkpointing", choices=["on", "off", "both"], default="on",
                        help="gradient checkpointing (default on)")
    add_arguments(parser, PEERS)
    options = parse_options(parser, PEERS)
    if options.vocab < TOKENIZER_SIZE:
        parser.error(f"--vocab {options.vocab}: the tokenizer has {TOKENIZER_SIZE} tokens")
    return options


def make_cases(options: argparse.Namespace) -> list[tuple[Case, list[str]]]:
    """Each case with the frameworks that run it."""
    ours = own_builds(options) + ([] if options.no_longspan else [SHARED])
    checkpointing = {"on": [True], "off": [False], "both": [False, True]}[options.checkpointing]
    cases = [(Case(tokens, options.vocab, 1 - options.prompt_share, how), ours + options.peers)
             for tokens in options.rows for how in checkpointing]
    long_prompt = max(options.rows) if options.long_prompt is None else options.long_prompt
    if ours and long_prompt:
        cases += [(Case(long_prompt, options.vocab, 1 - LONG_PROMPT, how), ours)
                  for how in checkpointing]
    return cases


def make_work(options, case: Case, names: list[str], num_pairs: int) -> Work:
    checkpoint = make_checkpoint(options.out / f"checkpoint-{case.vocab}", case.vocab)
    rows = options.out / f"pairs-{case.tokens}-{case.answer_share:g}"
    labels = make_pairs(rows, checkpoint, case, num_pairs)
    flops = {name: preference_flops(case, labels, name == SHARED) for name in names}
    return Work(Material(case, checkpoint, rows, labels, KEYS), 2 * case.tokens, flops,
                f"{case.name}: pairs of two rows of {case.tokens} tokens, prompts of "
                f"{case.tokens - labels // 2}")


def check_same_work(runs) -> None:
    """The first loss is log 2 whatever the rows are, so log-probabilities and the gradient say
    whether all train on the same ones."""
    for name, own_runs in runs.items():
        loss = own_runs[0].steps[0].loss
        # Peers round to four digits.
        if not abs(loss - math.log(2)) < 1e-4:
            raise SystemExit(f"{name}: the first loss is {loss}, not log 2: its reference is not "
                             "the model that training starts from")
    for key in ("logps/chosen", "logps/rejected"):
        check_first_step(runs, key, relative=1e-5)
    check_first_step(runs, "grad_norm", relative=1e-3)


def goals(works: list[Work], summaries: list[list[dict]]) -> list[dict]:
    """Those that the works and frameworks of this call can say something of."""
    found = []
    for work, rows in zip(works, summaries):
        case, by_name = work.case, {row["framework"]: row for row in rows}
        ours, peer = by_name.get("longspan"), by_name.get("llamafactory")
        limits = [tokens for tokens in SPEED_GOALS if case.tokens >= tokens]
        if ours and peer and limits:
            found.append(goal_of(work, [ours, peer], "tokens/s over LLaMA-Factory's",
                                 peer["longspan_speed_ratio"], SPEED_GOALS[max(limits)], True))
            found.append(goal_of(work, [ours, peer], "memory growth over LLaMA-Factory's",
                                 peer["longspan_growth_ratio"], GROWTH_GOAL, False))
        goal = SHARED_GOALS.get(1 - case.answer_share)
        if goal and SHARED in by_name and case.tokens >= SHARED_GOAL_TOKENS:
            found.append(goal_of(work, [ours, by_name[SHARED]],
                                 "tokens/s of shared over unshared prompts",
                                 1 / by_name[SHARED]["longspan_speed_ratio"], goal, True))
    return found


def main() -> None:
    options = parse_arguments()
    setup, peer_versions = prepare(options, ["torch", "transformers", "trl"])
    works = [make_work(options, case, names, setup.steps) for case, names in make_cases(options)]
    columns = {"row": lambda w: w.case.tokens,
               "prompt": lambda w: w.case.tokens - w.material.labels // 2,
               "labels": lambda w: w.material.labels}
    compare(options, works, setup, peer_versions, columns, check_same_work, "preference_speed",
            goals)


if __name__ == "__main__":
    main()
