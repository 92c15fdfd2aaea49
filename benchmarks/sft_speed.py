"""Supervised fine-tuning on long rows, Longspan and its peers side by side: tokens/s, memory, and the
share of the machine's GEMM rate. README.md in this folder says what is measured and how."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.comparison import (Work, add_arguments, check_first_step, compare, numbers, own_builds,
                              parse_options, prepare)
from speed.frameworks import Material
from speed.workload import TOKENIZER_SIZE, Case, make_checkpoint, make_rows, model_flops

PEERS = ["transformers", "llamafactory"]
ANSWER_SHARE, ANSWER_SHARE_BIG_VOCAB = 0.9, 0.5
BIG_VOCAB = 32768


def parse_arguments() -> argparse.Namespace:
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
    add_arguments(parser, PEERS)
    options = parse_options(parser, PEERS)
    if min(options.vocab) < TOKENIZER_SIZE:
        parser.error(f"--vocab {min(options.vocab)}: the tokenizer has {TOKENIZER_SIZE} tokens")
    return options


def make_cases(options: argparse.Namespace) -> list[tuple[Case, list[str]]]:
    """Each case with the frameworks that run it."""
    names = own_builds(options) + options.peers
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


def make_work(options, case: Case, names: list[str], num_rows: int) -> Work:
    checkpoint = make_checkpoint(options.out / f"checkpoint-{case.vocab}", case.vocab)
    rows = options.out / f"rows-{case.tokens}-{case.answer_share:g}"
    labels = make_rows(rows, checkpoint, case, num_rows)
    return Work(Material(case, checkpoint, rows, labels), case.tokens,
                {name: model_flops(case, labels) for name in names},
                f"{case.name}: rows of {case.tokens} tokens, {labels} of them with a label")


def check_same_work(runs) -> None:
    """Same checkpoint, same row, same labels: the first loss must be the same (peers print four
    digits)."""
    check_first_step(runs, "loss", absolute=2e-3)


def main() -> None:
    options = parse_arguments()
    setup, peer_versions = prepare(options, ["torch", "transformers"])
    works = [make_work(options, case, names, setup.steps) for case, names in make_cases(options)]
    columns = {"tokens": lambda w: w.case.tokens, "vocab": lambda w: w.case.vocab,
               "labels": lambda w: w.material.labels}
    compare(options, works, setup, peer_versions, columns, check_same_work, "sft_speed")


if __name__ == "__main__":
    main()
