"""Rows with pictures under every method of sequence parallelism, way to save memory, stage and number of ranks: the losses of
ten steps are those of one process. `make test-families`; what `make test` has of it is tests/parity/test_picture_training.py."""

import itertools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parity"))

from conftest import run_to_end  # noqa: E402
from covering import covering_array  # noqa: E402
from picture_models import MODELS, OTHERS  # noqa: E402
from test_picture_training import METHODS, STAGES, folder, settings  # noqa: E402, F401

STEPS = 10
AXES = {
    "model": [*MODELS, *OTHERS],
    "method": [*METHODS, "auto"],
    "num_ranks": [2, 3, 4],
    "rows": ["pictures", "videos", "packed", "pairs", "shared prompts", "kto", "rm", "pt"],
    "trains": ["all", "lora", "texts", "projector"],
    "zero": [0, 2, 3],
    "memory": ["checkpointing", "kept", "host", "disk", "tiled"],
}
ROWS = {
    "pictures": dict(dataset="seen"),
    "videos": dict(dataset="films"),
    "packed": dict(dataset="films", packing=True, neat_packing=True),
    "pairs": dict(dataset="pairs", stage="dpo", pref_share_prompt=False),
    "shared prompts": dict(dataset="pairs", stage="dpo", pref_share_prompt=True),
    **STAGES,
}
TRAINS = {
    "all": dict(),
    "lora": dict(finetuning_type="lora", lora_target="all"),
    "texts": dict(freeze_vision_tower=True, freeze_multi_modal_projector=True),
    "projector": dict(freeze_vision_tower=True, freeze_language_model=True),
}
MEMORY = {
    "checkpointing": dict(),
    "kept": dict(disable_gradient_checkpointing=True),
    "host": dict(offload_activations=True),
    "disk": dict(offload_activations="disk"),
    "tiled": dict(tiled_mlp=3),
}
ALONE = {}  # losses of one process


def is_served(run):
    """Four heads of 16 numbers divide into 2 and 4; a degree of 2 and a ring take 4 ranks."""
    num_ranks = {"usp": (4,), "loongtrain": (4,), "ulysses": (2, 4), "async-ulysses": (2, 4), "xtuner-ulysses": (2, 4)}
    return run["num_ranks"] in num_ranks.get(run["method"], AXES["num_ranks"])


def runs():
    return covering_array(AXES, list(itertools.combinations(AXES, 2)), is_served)


def name_of(run):
    return ", ".join(str(value) for value in run.values())


@pytest.mark.parametrize("folder, run", [(run["model"], run) for run in runs()], ids=[name_of(run) for run in runs()],
                         indirect=["folder"])
def test_same_losses(folder, run, tmp_path):  # noqa: F811
    same = ROWS[run["rows"]] | TRAINS[run["trains"]] | dict(max_steps=STEPS)
    key = (run["model"], run["rows"], run["trains"])
    if key not in ALONE:
        ALONE[key] = run_to_end(settings(folder, tmp_path / "alone") | same).logged("loss")
    keys = dict(sequence_parallel_size=run["num_ranks"], zero_stage=run["zero"]) | MEMORY[run["memory"]]
    if run["method"] != "auto":
        keys["sequence_parallel_mode"] = run["method"]
    if run["method"] in ("usp", "loongtrain"):
        keys["sequence_parallel_ulysses_degree"] = 2
    shared = run_to_end(settings(folder, tmp_path / "shared") | same | keys, run["num_ranks"], timeout=180)
    assert len(ALONE[key]) == STEPS
    assert shared.logged("loss") == pytest.approx(ALONE[key], rel=1e-5)
