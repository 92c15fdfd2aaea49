"""Supervised fine-tuning on rows with pictures, Longspan and transformers side by side: tokens/s and memory. README.md
in this folder says what is measured and how."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed import pictures
from speed.comparison import Work, add_arguments, check_first_step, compare, own_builds, parse_options, prepare
from speed.frameworks import Material
from speed.workload import TOKENIZER_SIZE, Case

PEERS = ["transformers-pictures"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096, help="of a row, its pictures' too (default 4096)")
    parser.add_argument("--answer-share", type=float, default=0.5,
                        help="share of the tokens outside of pictures that have a label (default 0.5)")
    parser.add_argument("--checkpointing", choices=["on", "off", "both"], default="both")
    parser.add_argument("--tower", choices=["trained", "frozen", "both"], default="both")
    add_arguments(parser, PEERS)
    return parse_options(parser, PEERS)


def make_work(options, case: Case, trained: bool, num_rows: int) -> Work:
    checkpoint = pictures.make_checkpoint(options.out / "checkpoint-pictures")
    rows = options.out / f"rows-pictures-{case.tokens}"
    labels = pictures.make_rows(rows, checkpoint, case, num_rows)
    keys = {"stage": "sft", "template": "qwen2_vl", "freeze_vision_tower": not trained,
            "freeze_multi_modal_projector": not trained}
    work = pictures.flops(case, labels, trained)
    names = own_builds(options) + options.peers
    return Work(Material(case, checkpoint, rows, labels, keys), case.tokens, {name: work for name in names},
                f"{case.name}, tower {'trained' if trained else 'frozen'}: rows of {case.tokens} tokens, "
                f"{pictures.PICTURES} pictures of {pictures.TOKENS_OF_PICTURE} tokens each")


def main() -> None:
    options = parse_arguments()
    setup, peer_versions = prepare(options, ["torch", "torchvision", "transformers"])
    checkpointing = {"on": [True], "off": [False], "both": [False, True]}[options.checkpointing]
    trained = {"trained": [True], "frozen": [False], "both": [True, False]}[options.tower]
    works = [make_work(options, Case(options.tokens, TOKENIZER_SIZE, options.answer_share, how), all_, setup.steps)
             for all_ in trained for how in checkpointing]
    columns = {"tokens": lambda w: w.case.tokens,
               "tower": lambda w: "frozen" if w.material.keys["freeze_vision_tower"] else "trained"}
    compare(options, works, setup, peer_versions, columns,
            lambda runs: check_first_step(runs, "loss", absolute=2e-3), "picture_speed")


if __name__ == "__main__":
    main()
