"""Trains many small runs with two builds, in turn, and compares every bit: `make same-bits OLD=folder/of/a/build`.

For a change after which results stay as they are. Runs are drawn so that every pair of values meets: stages, what is trained, dtypes,
modes of sequence parallelism with their numbers of processes, ZeRO, offloads and tiles. Compared are the losses and gradient norms of
every step, the evaluation's loss and the numbers of all saved files of weights. What a build refuses, the other must refuse in the
same words. Prints a line for each run that differs, and fails then."""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from allpairspy import AllPairs  # noqa: E402
from chaos.runs import make_inputs  # noqa: E402
from conftest import Running, settings_of  # noqa: E402

PAIRS = dict(dataset="pairs", eval_dataset="held_out_pairs")
STAGES = {
    "pt": dict(stage="pt", cutoff_len=48),
    "sft": dict(stage="sft"),
    "sft packed": dict(stage="sft", neat_packing=True, cutoff_len=128),
    "dpo": dict(stage="dpo") | PAIRS,
    "dpo shared": dict(stage="dpo", pref_share_prompt=True) | PAIRS,
    "orpo": dict(stage="dpo", pref_loss="orpo") | PAIRS,
    "kto": dict(stage="kto", dataset="verdicts", eval_dataset="held_out_verdicts"),
    "rm": dict(stage="rm") | PAIRS,
}
TRAINED = {
    "full": dict(),
    "lora": dict(finetuning_type="lora", lora_rank=4, lora_dropout=0.1),
    "freeze": dict(finetuning_type="freeze", freeze_trainable_layers=1),
}
# By the number of processes that share a row. The model has 8 query and 2 kv heads.
ULYSSES = ["ulysses", "xtuner-ulysses", "async-ulysses"]
ANY = ["balanced-ulysses", "dummy-head-ulysses", "ring", "striped-ring", "zigzag-ring", "llama3", "allgather"]
SHARING = {"alone": (1, {})} | {
    f"{mode} {size}": (size, dict(sequence_parallel_size=size, sequence_parallel_mode=mode))
    for size, modes in {2: ULYSSES + ANY, 3: ANY, 4: ["usp", "loongtrain"]}.items() for mode in modes
} | {"two rows": (2, {}), "two rows on 4, zigzag-ring": (4, dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring"))}
DTYPES = {"fp32": dict(), "bf16": dict(bf16=True), "pure bf16": dict(pure_bf16=True)}
MEMORY = {
    "plain": dict(),
    "no checkpoints": dict(disable_gradient_checkpointing=True),
    "tiles": dict(tiled_mlp=16),
    "offloads": dict(offload_optimizer=True, offload_activations="true"),
    "ZeRO 1": dict(zero_stage=1),
    "ZeRO 2": dict(zero_stage=2),
    "ZeRO 3": dict(zero_stage=3),
    "ZeRO 3, offloads": dict(zero_stage=3, offload_optimizer=True, offload_params=True, offload_activations="true"),
    "Muon": dict(optim="muon"),
    "8-bit": dict(optim="adamw_8bit"),
    "8-bit, ZeRO 3": dict(optim="adamw_8bit", zero_stage=3),
}
AXES = [STAGES, TRAINED, SHARING, DTYPES, MEMORY]


def makes_sense(names):
    """Whether a run of these, the first of the axes, can be asked for."""
    if len(names) > 4 and "ZeRO" in names[4] and names[2] == "alone":
        return False
    return True


def numbers_in(folder):
    """A hash of each file of weights that is saved."""
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(folder.rglob("*.safetensors"))}


def outcome_of(build, names, folder, inputs):
    num_ranks, keys = SHARING[names[2]]
    for axis, name in zip((STAGES, TRAINED, DTYPES, MEMORY), (*names[:2], *names[3:])):
        keys = keys | axis[name]
    keys = dict(eval_dataset="held_out", eval_strategy="steps", eval_steps=2, max_steps=3, gradient_accumulation_steps=2,
                cutoff_len=96, save_strategy="steps", save_steps=2) | keys
    run = Running(settings_of(inputs / "model", inputs / "data", folder / "run", **keys), num_ranks,
                  program=build / "longspan").wait(timeout=180)
    if run.status != 0:
        errors = re.findall(r"error: .*", run.text)
        return dict(refused=sorted(set(errors)) or f"status {run.status}: {run.text[-500:]}")
    logged = {key: run.logged(key) for key in ("loss", "grad_norm", "eval_loss")}
    return logged | dict(files=numbers_in(run.output_dir))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=pathlib.Path, help="folder of a build")
    parser.add_argument("new", type=pathlib.Path, help="folder of another")
    parser.add_argument("--only", default="", help="words that the name of a run must contain, with commas between")
    parser.add_argument("--most", type=int, help="no more runs than so many")
    parser.add_argument("--record", type=pathlib.Path, help="a JSON file for what the old build makes; read where it is there")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    runs = [tuple(names) for names in AllPairs([list(axis) for axis in AXES], filter_func=makes_sense)]
    words = [word for word in arguments.only.split(",") if word]
    runs = [names for names in runs if all(word in ", ".join(names) for word in words)]
    record = arguments.record
    known = json.loads(record.read_text()) if record and record.exists() else {}
    counts = dict(same=0, refused=0, different=0)
    with tempfile.TemporaryDirectory(prefix="longspan-same-bits-") as place:
        place = pathlib.Path(place)
        make_inputs(place / "inputs")
        for number, names in enumerate(itertools.islice(runs, arguments.most)):
            name, outcomes = ", ".join(names), {}
            for which, build in (("old", arguments.old), ("new", arguments.new)):
                folder = place / which
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                if which == "old" and name in known:
                    outcomes[which] = known[name]
                else:
                    outcomes[which] = outcome_of(build.resolve(), names, folder, place / "inputs")
            # As they are after being written and read.
            old, new = (json.loads(json.dumps(outcomes[which]).replace(f"{place}/{which}", "")) for which in ("old", "new"))
            known[name] = old
            what = "different" if old != new else "refused" if "refused" in old else "same"
            counts[what] += 1
            if what != "same":
                print(f"{name}: {what}", flush=True)
            if what == "refused":
                print(f"  {old['refused']}", flush=True)
            if what == "different":
                for key in sorted(set(old) | set(new)):
                    if old.get(key) != new.get(key):
                        print(f"  {key}\n    old {old.get(key)}\n    new {new.get(key)}", flush=True)
            if number % 10 == 9:
                print(f"-- {number + 1} of {len(runs)}: {counts}", flush=True)
            if record:
                record.write_text(json.dumps(known, indent=1))
    print(f"{sum(counts.values())} runs: {counts['same']} the same to the bit, {counts['refused']} refused by both in the same words, "
          f"{counts['different']} different")
    sys.exit(1 if counts["different"] or not counts["same"] else 0)


if __name__ == "__main__":
    main()
