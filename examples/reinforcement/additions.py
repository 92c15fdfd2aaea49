"""Writes data sets of additions of one-digit numbers, in LLaMA-Factory's alpaca format, into the given folder: 65
questions for training (additions.jsonl), the other 16 for a look at the trained model (held_out.jsonl), and
dataset_info.json, which names both.

    python examples/reinforcement/additions.py data/additions
"""

import json
import pathlib
import random
import sys

if len(sys.argv) != 2:
    sys.exit("usage: additions.py FOLDER")
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
questions = [{"instruction": f"{a} + {b} = ? Answer with one number.", "output": str(a + b)}
             for a in range(1, 10) for b in range(1, 10)]
random.Random(0).shuffle(questions)
for name, part in ("additions.jsonl", questions[16:]), ("held_out.jsonl", questions[:16]):
    (folder / name).write_text("".join(json.dumps(question) + "\n" for question in part))
names = {name: {"file_name": f"{name}.jsonl"} for name in ("additions", "held_out")}
(folder / "dataset_info.json").write_text(json.dumps(names, indent=2) + "\n")
