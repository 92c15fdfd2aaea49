"""mix_strategy and interleave_probs: the rows of several data sets in the order of LLaMA-Factory's merge_dataset(), also of
streamed ones."""

import json
import random
import types
from typing import Union

import datasets
import llamafactory_data
from probes import data_probe
from test_text import fetch

STRATEGIES = ["concat", "interleave_under", "interleave_over", "interleave_once"]


def ids(folder, **keys):
    config = dict(model_name_or_path=str(fetch("qwen2_5")), dataset_dir=str(folder), output_dir="unused", do_train=True,
                  template="empty") | keys
    (folder / "config.json").write_text(json.dumps(config))
    return [row["input_ids"] for row in data_probe.examples(folder / "config.json")]


def merge_dataset():
    known = dict(Union=Union, logger=llamafactory_data.Logger("mixing"), concatenate_datasets=datasets.concatenate_datasets,
                 interleave_datasets=datasets.interleave_datasets)
    known["logger"].warning_rank0_once = lambda *_: None
    [merge] = llamafactory_data.functions("data/data_utils.py", ["merge_dataset"],
                                          known | {"Dataset": datasets.Dataset, "IterableDataset": datasets.IterableDataset,
                                                   "DataArguments": types.SimpleNamespace})
    return merge


def test_rows_of_several_data_sets(tmp_path):
    merge = merge_dataset()
    rng = random.Random(3)
    for number in range(8):
        sizes = [rng.randrange(1, 30) for _ in range(rng.randrange(2, 5))]
        names = [f"set{number}{i}.jsonl" for i in range(len(sizes))]
        sets = [[{"prompt": f"{i} {j}", "completion": "x"} for j in range(size)] for i, size in enumerate(sizes)]
        for name, rows in zip(names, sets, strict=True):
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        seed = rng.choice([0, 42, 2**40 + 7])
        all_ids = ids(tmp_path, dataset=",".join(names))
        place = {row["prompt"]: i for i, row in enumerate(row for rows in sets for row in rows)}
        weights = [rng.random() + 0.05 for _ in sizes]
        probabilities = [weight / sum(weights) for weight in weights]
        for strategy in STRATEGIES:
            for probs in [None, probabilities]:
                if probs and strategy == "concat":
                    continue
                arguments = types.SimpleNamespace(mix_strategy=strategy, interleave_probs=probs, streaming=False)
                merged = merge([datasets.Dataset.from_list(rows) for rows in sets], arguments, seed)
                given = dict(interleave_probs=",".join(map(repr, probs))) if probs else {}
                assert ids(tmp_path, dataset=",".join(names), mix_strategy=strategy, seed=seed, **given) == [
                    all_ids[place[row["prompt"]]] for row in merged], (strategy, sizes, probs, seed)


def test_streams_of_several_data_sets(tmp_path):
    """They are mixed before they are shuffled."""
    merge = merge_dataset()
    sizes = [7, 3, 12]
    names = [f"set{i}.jsonl" for i in range(len(sizes))]
    sets = [[{"prompt": f"{i} {j}", "completion": "x"} for j in range(size)] for i, size in enumerate(sizes)]
    for name, rows in zip(names, sets, strict=True):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = dict(dataset=",".join(names), max_steps=1, disable_shuffling=True, streaming=True, seed=5)
    all_ids = ids(tmp_path, dataset=keys["dataset"])
    place = {row["prompt"]: i for i, row in enumerate(row for rows in sets for row in rows)}
    for strategy in STRATEGIES:
        for probs in [None, [0.2, 0.3, 0.5]]:
            if probs and strategy == "concat":
                continue
            arguments = types.SimpleNamespace(mix_strategy=strategy, interleave_probs=probs, streaming=True)
            merged = merge([datasets.Dataset.from_list(rows).to_iterable_dataset() for rows in sets], arguments, keys["seed"])
            given = dict(interleave_probs=",".join(map(repr, probs))) if probs else {}
            assert ids(tmp_path, mix_strategy=strategy, **keys, **given) == [
                all_ids[place[row["prompt"]]] for row in merged], (strategy, probs)
