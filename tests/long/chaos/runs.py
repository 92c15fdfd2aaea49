"""What is trained and how it is started: stages, ZeRO, modes of sequence parallelism, numbers of processes."""

import dataclasses
import hashlib
import json
import pathlib
import sys

from conftest import PROGRAM, add_dataset, modes_of_the_program, settings_of, write_dataset, write_model

TORCHRUN = pathlib.Path(sys.executable).with_name("torchrun")
STEPS, SAVE_STEPS, EVAL_STEPS = 12, 3, 4
PORT = 29500  # in a network namespace of its own
ADDRESSES = ["10.77.0.1", "10.77.0.2"]  # of two machines

# How processes come to be: one by itself; each by itself, as mpirun starts them; by `longspan train`, which starts torchrun; by
# `longspan train` or torchrun on each of two machines.
ALONE, RANKS, LAUNCHER, MACHINES, TORCHRUN_MACHINES = "alone", "ranks", "launcher", "two machines", "torchrun on two machines"

# Rollouts of the model itself: a run may be killed between the updates on a batch. These stages have no evaluation.
ROLLOUTS = dict(rollout="self", num_generations=2, num_iterations=2, max_completion_length=8, cutoff_len=160, eval_dataset=None,
                eval_strategy=None, eval_steps=None)
LORA = dict(finetuning_type="lora", lora_rank=4, lora_dropout=0.1)
STAGES = {
    "sft": dict(stage="sft"),
    "sft packed": dict(stage="sft", neat_packing=True, cutoff_len=128),
    "sft bf16": dict(stage="sft", bf16=True),
    "sft 8-bit": dict(stage="sft", optim="adamw_8bit"),
    "sft lora": dict(stage="sft") | LORA,
    "pt": dict(stage="pt", cutoff_len=48),
    "dpo": dict(stage="dpo", dataset="pairs", eval_dataset="held_out_pairs"),
    "dpo ahead": dict(stage="dpo", dataset="pairs", eval_dataset="held_out_pairs", precompute_ref_log_probs=True),
    "dpo lora": dict(stage="dpo", dataset="pairs", eval_dataset="held_out_pairs") | LORA,
    "kto": dict(stage="kto", dataset="verdicts", eval_dataset="held_out_verdicts"),
    "grpo": dict(stage="grpo", rewards="length", beta=0.1) | ROLLOUTS,
    "distill": dict(stage="distill", ref_model="teacher") | ROLLOUTS,
    "distill_sft": dict(stage="distill_sft", ref_model="teacher"),
    "rm": dict(stage="rm", dataset="pairs", eval_dataset="held_out_pairs", pref_share_prompt=True),
}
# By the number of processes that share a row. The llama model has 8 query and 2 kv heads of 8 numbers; 3 divides neither.
DIVIDE_HEADS = {"ulysses", "async-ulysses", "xtuner-ulysses"}
MODES = {
    2: modes_of_the_program(),
    3: [mode for mode in modes_of_the_program() if mode not in DIVIDE_HEADS],
    4: modes_of_the_program(),
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of run: its keys (JSON, so that it can be a key itself), how it is started, processes on each machine."""

    name: str
    keys_json: str
    start: str
    num_processes: int
    num_restarts: int = 0  # torchrun's own

    @property
    def keys(self):
        return json.loads(self.keys_json)

    @property
    def num_machines(self):
        return 2 if self.start in (MACHINES, TORCHRUN_MACHINES) else 1

    @property
    def launched(self):
        return self.start in (LAUNCHER, MACHINES, TORCHRUN_MACHINES)

    @property
    def digest(self):
        """Of what decides about the numbers: other restarts make the same ones."""
        return hashlib.sha256(json.dumps([self.keys_json, self.start, self.num_processes]).encode()).hexdigest()[:16]


def draw_kind(rng, suits=lambda kind: True):
    """One that suits, by chance."""
    while True:
        kind = draw_any_kind(rng)
        if suits(kind):
            return kind


def draw_any_kind(rng):
    stage = rng.choice(list(STAGES))
    num_processes = rng.choice([1, 2, 2, 2, 3, 4])
    start = ALONE
    if num_processes > 1:
        start = rng.choice([RANKS, LAUNCHER, LAUNCHER] + [MACHINES, TORCHRUN_MACHINES] * (num_processes % 2 == 0))
    keys = dict(STAGES[stage])
    words = [stage]
    sharing = rng.choice([size for size in (1, 2, 3, 4) if num_processes % size == 0])
    zero = rng.choice([0, 1, 2, 3]) if num_processes > 1 else 0
    if zero:
        keys["zero_stage"] = zero
        words.append(f"ZeRO {zero}")
    if zero and rng.random() < 0.3:
        keys["offload_optimizer"] = True
        words.append("optimizer offloaded")
        if zero == 3:
            keys["offload_params"] = True
            words.append("parameters offloaded")
    if zero and num_processes == 4 and rng.random() < 0.3:
        keys["zero_shard_size"] = 2
        words.append("hybrid")
    if rng.random() < 0.2:
        keys["offload_activations"] = rng.choice(["true", "disk"])
        words.append("activations offloaded")
    if sharing > 1:
        mode = rng.choice(MODES[sharing])
        keys |= dict(sequence_parallel_size=sharing, sequence_parallel_mode=mode)
        words.append(f"{mode} {sharing}")
    restarts = 1 if start == LAUNCHER and rng.random() < 0.25 else 0
    if rng.random() < 0.3:
        keys["save_async"] = True
        words.append("saves in the background")
    words.append(f"{num_processes} processes, {start}" if num_processes > 1 else "1 process")
    return Kind(", ".join(words), json.dumps(keys, sort_keys=True), start, num_processes, restarts)


def make_inputs(folder):
    """The model and the data sets, once."""
    if (folder / "inputs_are_made").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model", "llama")
    write_model(folder / "teacher", "llama", initializer_range=0.1)
    data = folder / "data"
    write_dataset(data, num_rows=24, longest=60)
    write_dataset(data, num_rows=40, seed=1, longest=60, name="held_out")
    for prefix, count in (("", 24), ("held_out_", 40)):
        words = [f"{prefix}word{i} and more of it" for i in range(count)]
        add_dataset(data, f"{prefix}pairs",
                    [dict(instruction=w, input="", chosen=w + " yes, so it is", rejected="no " + w) for w in words], ranking=True,
                    columns=dict(prompt="instruction", query="input", chosen="chosen", rejected="rejected"))
        add_dataset(data, f"{prefix}verdicts", [dict(instruction=w, output=w + " so", label=i % 3 != 0) for i, w in enumerate(words)],
                    columns=dict(prompt="instruction", response="output", kto_tag="label"))
    (folder / "inputs_are_made").touch()


def config_of(kind, inputs, output_dir, ddp_timeout, **changes):
    keys = dict(eval_dataset="held_out", eval_strategy="steps", eval_steps=EVAL_STEPS, save_strategy="steps", save_steps=SAVE_STEPS,
                save_total_limit=2, max_steps=STEPS, gradient_accumulation_steps=2, cutoff_len=96, ddp_timeout=ddp_timeout,
                offload_folder=str(pathlib.Path(output_dir).parent))
    settings = settings_of(inputs / "model", inputs / "data", output_dir, **keys) | kind.keys
    if "ref_model" in settings:
        settings["ref_model"] = str(inputs / settings["ref_model"])
    settings = {key: value for key, value in settings.items() if value is not None}
    if settings.get("offload_activations") != "disk":
        del settings["offload_folder"]
    if kind.start == LAUNCHER:
        settings["nproc_per_node"] = kind.num_processes
    return settings | changes


def commands_of(kind, config, port=PORT):
    """(machine, command, environment) of each process that a user or a cluster starts."""
    train = [str(PROGRAM), "train", str(config)]
    threads = dict(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    if kind.start == ALONE:
        return [(0, train, threads)]
    if kind.start == LAUNCHER:
        return [(0, train, threads | (dict(MAX_RESTARTS=str(kind.num_restarts)) if kind.num_restarts else {}))]
    if kind.start == RANKS:
        place = dict(WORLD_SIZE=str(kind.num_processes), LOCAL_WORLD_SIZE=str(kind.num_processes), MASTER_ADDR="127.0.0.1",
                     MASTER_PORT=str(port))
        return [(0, train, threads | place | dict(RANK=str(rank), LOCAL_RANK=str(rank))) for rank in range(kind.num_processes)]
    each = kind.num_processes // 2
    if kind.start == MACHINES:
        return [(node, train, threads | dict(NNODES="2", NODE_RANK=str(node), NPROC_PER_NODE=str(each), MASTER_ADDR=ADDRESSES[0],
                                             MASTER_PORT=str(port))) for node in (0, 1)]
    return [(node, [str(TORCHRUN), "--no-python", "--nnodes=2", f"--node-rank={node}", f"--nproc-per-node={each}",
                    f"--master-addr={ADDRESSES[0]}", f"--master-port={port}", *train], threads) for node in (0, 1)]
