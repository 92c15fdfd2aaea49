"""How each framework is started on a case, and where its step times come from."""

import dataclasses
import functools
import json
import os
import shutil
import sys
from pathlib import Path

from speed import rollouts
from speed.watch import Run, StepLog, summarise, watch
from speed.workload import Case

HERE = Path(__file__).resolve().parent
LEARNING_RATE = 1e-5


@dataclasses.dataclass
class Setup:
    """What all runs share. Paths are absolute."""

    longspan: Path  # the program
    llamafactory_python: Path | None
    work: Path
    threads: int
    steps: int  # of a run, warm-up included
    limit_seconds: float
    before: Path | None = None  # another build of the program


@dataclasses.dataclass
class Material:
    case: Case
    checkpoint: Path
    rows: Path  # the folder that make_rows, make_pairs or make_groups wrote
    labels: int  # of a step
    # Keys of the configuration that only this training has.
    keys: dict = dataclasses.field(default_factory=lambda: {"stage": "sft"})


def _environment(setup: Setup) -> dict[str, str]:
    environment = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(setup.threads)
    environment |= {
        "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "HF_HOME": str(setup.work / "huggingface"), "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
    }
    return environment


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _config(setup: Setup, material: Material, output: Path) -> dict:
    """The keys that Longspan and LLaMA-Factory are both given."""
    data = {"dataset": "rows", "dataset_dir": str(material.rows)}
    if material.keys["stage"] == "grpo":
        data = {"rollouts": str(material.rows / rollouts.SHARED)}
    return data | {
        "model_name_or_path": str(material.checkpoint), "do_train": True,
        "finetuning_type": "full", "template": "chatml", "cutoff_len": material.case.tokens, "output_dir": str(output),
        "disable_shuffling": True, "preprocessing_num_workers": 1, "logging_steps": 1,
        "save_strategy": "no", "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1, "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant", "max_steps": setup.steps, "max_grad_norm": 1.0,
        "bf16": False, "flash_attn": "sdpa", "seed": 42,
        "disable_gradient_checkpointing": not material.case.checkpointing,
    } | material.keys


def _write_yaml(path: Path, keys: dict) -> Path:
    # A JSON value is a YAML value, but YAML 1.1 reads 1e-05 as text.
    def value(v):
        return f"{v:.8f}" if isinstance(v, float) else json.dumps(v)

    path.write_text("".join(f"{key}: {value(v)}\n" for key, v in keys.items()))
    return path


def _peer_run(setup: Setup, command: list[str], folder: Path, events: Path) -> Run:
    step_log = StepLog(events)
    samples = watch(command, _environment(setup), folder / "log.txt", step_log,
                    setup.limit_seconds)
    lines = [line for _, line in step_log.lines]
    begin = next(line["time"] for line in lines if line["event"] == "begin")
    ends = [line["time"] for line in lines if line["event"] == "step"]
    logged = {line["step"]: line["logged"] for line in lines if line["event"] == "log"}
    return summarise(samples, begin, ends, [logged[i + 1] for i in range(len(ends))])


def _run_worker(name: str, setup: Setup, material: Material, **job_of_worker) -> Run:
    """A peer that is given tokens, in this interpreter's environment: NAME_worker.py."""
    folder = _fresh(setup.work / "runs" / name)
    job = {
        "checkpoint": str(material.checkpoint), "tokens": str(material.rows / "tokens.json"),
        "events": str(folder / "events.jsonl"), "output_dir": str(folder / "output"),
        "threads": setup.threads, "steps": setup.steps, "learning_rate": LEARNING_RATE,
        "checkpointing": material.case.checkpointing, "keys": material.keys,
    } | job_of_worker
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, str(HERE / f"{name}_worker.py"), str(folder / "job.json")]
    return _peer_run(setup, command, folder, folder / "events.jsonl")


def run_llamafactory(setup: Setup, material: Material) -> Run:
    folder = _fresh(setup.work / "runs/llamafactory")
    keys = _config(setup, material, folder / "output") | {
        "use_cpu": True, "overwrite_cache": True, "report_to": "none",
        "optim": "adamw_torch_fused",
    }
    command = [str(setup.llamafactory_python), str(HERE / "llamafactory_worker.py"),
               str(folder / "events.jsonl"), str(_write_yaml(folder / "config.yaml", keys))]
    return _peer_run(setup, command, folder, folder / "events.jsonl")


def run_longspan(setup: Setup, material: Material, name: str = "longspan") -> Run:
    """Step times out of trainer_log.jsonl: its throughput is total_tokens over the seconds since
    training began, unrounded, so that their quotient is that time."""
    folder = _fresh(setup.work / "runs" / name)
    keys = _config(setup, material, folder / "output") | {"device": "cpu"}
    config = _write_yaml(folder / "config.yaml", keys)
    step_log = StepLog(folder / "output/trainer_log.jsonl")
    ranks = keys.get("nproc_per_node", 1)
    shared_out = dataclasses.replace(setup, threads=max(1, setup.threads // ranks))
    samples = watch([str(setup.longspan), "train", str(config)], _environment(shared_out),
                    folder / "log.txt", step_log, setup.limit_seconds, copies_weights=True)
    lines = [(written, line) for written, line in step_log.lines if "loss" in line]
    elapsed = [line["total_tokens"] / line["throughput"] for _, line in lines]
    # The log's clock has no date; the file's time of change, which is exact to a tick of the
    # machine's clock (4 ms), gives it one.
    begin = min(written - seconds for (written, _), seconds in zip(lines, elapsed))
    state = json.loads((folder / "output/trainer_state.json").read_text())
    logged = [entry for entry in state["log_history"] if "loss" in entry]
    run = summarise(samples, begin, [begin + seconds for seconds in elapsed], logged)
    # AdamW's moments are growth for everybody. The peers make them in the first step, Longspan just
    # before its clock starts, so they are in the level that was read: two for each fp32 weight, in
    # each process.
    weights = sum(f.stat().st_size for f in material.checkpoint.glob("*.safetensors"))
    run.level -= 2 * ranks * weights
    return run


def run_longspan_before(setup: Setup, material: Material) -> Run:
    return run_longspan(dataclasses.replace(setup, longspan=setup.before), material, "longspan-before")


def run_longspan_sharing(setup: Setup, material: Material) -> Run:
    """The prompt of a pair is computed once for both answers."""
    keys = material.keys | {"pref_share_prompt": True}
    return run_longspan(setup, dataclasses.replace(material, keys=keys), "longspan-shared")


def run_longspan_separate(setup: Setup, material: Material) -> Run:
    """Each rollout of a step is a group and a row of its own."""
    count = material.keys["num_generations"]
    keys = material.keys | {
        "rollouts": str(material.rows / rollouts.SEPARATE), "num_generations": 1,
        "advantage_estimator": "reward", "gradient_accumulation_steps": count}
    return run_longspan(setup, dataclasses.replace(material, keys=keys), "longspan-separate")


def run_trl_grpo(setup: Setup, material: Material, at_once: int | None = None) -> Run:
    """`at_once`: answers of a forward; left out: all of a group."""
    return _run_worker("rollouts", setup, material, at_once=at_once or material.keys["num_generations"])


FRAMEWORKS = {
    "longspan": run_longspan, "longspan-shared": run_longspan_sharing,
    "longspan-before": run_longspan_before, "longspan-separate": run_longspan_separate,
    "transformers": functools.partial(_run_worker, "transformers"),
    "transformers-pictures": functools.partial(_run_worker, "pictures"),
    "trl": functools.partial(_run_worker, "trl"), "llamafactory": run_llamafactory,
    "trl-grpo": run_trl_grpo, "trl-grpo-single": functools.partial(run_trl_grpo, at_once=1),
}
