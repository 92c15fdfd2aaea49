"""Every model family on simulated GPUs, or on real ones: how ranks share its rows, what saves memory, what is trained and
how. The numbers of a run are the CPU's; on simulated GPUs a race, or a host that touches memory of a device, ends it."""

import math

from conftest import BUILD, Running, modes_of_the_program, relative_difference, same_run
from covering import covering_array
from device import DEVICE, device_keys, simulated_environment, simulated_program
from families import QUERY_HEADS, STAGES, Families, families_of_the_program, is_served

NUM_STEPS = 3
ROWS_OF_A_STEP = 4
MIXTURES = ("qwen3_moe", "qwen3_next", "qwen3_5_moe_text", "glm4_moe", "deepseek_v3", "gpt_oss")

# How ranks share rows, by what they send each other. Where not said, by a method of sequence parallelism on two ranks.
EXCHANGES = {
    "nothing": ["alone"],
    "gradients": ["rows"],
    "experts": ["experts", "experts of a row"],
    "heads": ["ulysses", "dummy-head-ulysses", "xtuner-ulysses", "async-ulysses", "balanced-ulysses"],
    "a ring": ["ring", "striped-ring", "zigzag-ring", "usp", "loongtrain"],
    "keys": ["allgather", "llama3"],
}
OF_TWO = {
    "rows": dict(),
    "experts": dict(expert_parallel_size=2),
    "experts of a row": dict(expert_parallel_size=2, sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring"),
}
# What may not change a number.
MEMORY = {
    "plain": dict(),
    "no checkpoints": dict(disable_gradient_checkpointing=True),
    "ZeRO 1": dict(zero_stage=1),
    "ZeRO 2, states on the host": dict(zero_stage=2, offload_optimizer=True, offload_activations=True),
    "ZeRO 3, activations in a file": dict(zero_stage=3, offload_activations="disk"),
    "ZeRO 3, all on the host": dict(zero_stage=3, offload_params=True, offload_optimizer=True, offload_activations=True),
}
TRAINED = {"full": dict(), "LoRA": dict(finetuning_type="lora")}
# A row is packed of that many documents.
DOCUMENTS = {"row by row": 1, "packed": 2}
NUMBERS = {"fp32": dict(), "bf16": dict(bf16=True)}
AXES = dict(family=families_of_the_program(), exchange=list(EXCHANGES), sharing=sum(EXCHANGES.values(), []),
            heads=list(QUERY_HEADS), rows=list(DOCUMENTS), memory=list(MEMORY), trained=list(TRAINED), stage=["sft", *STAGES])


def can_be(run):
    if run["sharing"] not in EXCHANGES[run["exchange"]]:
        return False
    if run["exchange"] == "experts" and run["family"] not in MIXTURES:
        return False
    return is_served(run | dict(method=run["sharing"], ranks=2))


def all_runs():
    """Each family with each exchange, way to save memory, stage and what else is here, and each method with most of it. Of
    each family every fourth run is in bf16."""
    assert set(sum(EXCHANGES.values(), [])) == {"alone", "rows", "experts", "experts of a row", *modes_of_the_program()}
    pairs = [("family", other) for other in AXES if other not in ("family", "sharing")]
    pairs += [("sharing", other) for other in ("rows", "memory", "trained", "stage")]
    pairs += [("memory", other) for other in ("rows", "trained", "stage")]
    pairs += [("heads", "rows"), ("heads", "trained"), ("rows", "trained")]
    runs = sorted(covering_array(AXES, pairs, can_be), key=lambda run: AXES["family"].index(run["family"]))
    return [run | dict(numbers="bf16" if i % 4 == 3 else "fp32") for i, run in enumerate(runs)]


def some_runs():
    """A hybrid, latent attention, sinks, windows, and experts that ranks share out."""
    runs = [
        ("qwen3_5_text", "heads", "ulysses", "tens", "packed", "ZeRO 3, all on the host", "full", "sft"),
        ("deepseek_v3", "a ring", "zigzag-ring", "tens", "row by row", "ZeRO 2, states on the host", "full", "sft"),
        ("gpt_oss", "keys", "llama3", "nines", "packed", "ZeRO 1", "LoRA", "sft"),
        ("gemma3_text", "nothing", "alone", "nines", "packed", "no checkpoints", "full", "dpo"),
        ("qwen3_moe", "experts", "experts", "tens", "row by row", "plain", "full", "sft"),
    ]
    return [dict(zip(AXES, run)) | dict(numbers="fp32") for run in runs]


class OnGpus:
    """Runs in a folder that all of pytest's workers share."""

    def __init__(self, place, known_run):
        self.families, self.known_run = Families(place, known_run), known_run

    def settings(self, run, output_dir, num_groups=1):
        documents = DOCUMENTS[run["rows"]]
        # Adapters of experts, which mixtures have too, are refused with dropout, and each data-parallel group drops its own.
        drops = run["trained"] == "LoRA" and run["family"] not in MIXTURES and run["exchange"] != "gradients"
        dropout = dict(lora_dropout=0.1) if drops else {}
        of_step = dict(max_steps=NUM_STEPS, per_device_train_batch_size=documents,
                       gradient_accumulation_steps=ROWS_OF_A_STEP // documents // num_groups)
        kind = STAGES.get(run["stage"], {}) | TRAINED[run["trained"]]
        return self.families.settings(run, output_dir) | kind | dropout | of_step

    def check(self, run, output_dir):
        sharing = run["sharing"]
        num_ranks = 1 if sharing == "alone" else 2
        shared = {} if num_ranks == 1 else OF_TWO.get(
            sharing, dict(sequence_parallel_size=2, sequence_parallel_mode=sharing))
        num_groups = num_ranks // shared.get("sequence_parallel_size", 1)
        settings = self.settings(run, output_dir, num_groups) | shared | MEMORY[run["memory"]] | NUMBERS[run["numbers"]]
        if DEVICE == "cuda":
            running = Running(settings | device_keys(), num_ranks)
        else:
            running = Running(settings | dict(device="cuda"), num_ranks, program=simulated_program(BUILD),
                              **simulated_environment(BUILD))
        ended = running.wait(120)
        assert set(ended.statuses) == {0}, ended.text
        assert len(ended.logged("loss")) == NUM_STEPS
        on_cpu = self.known_run(self.settings(run, "") | dict(device="cpu"))
        if run["numbers"] == "fp32":
            same_run(ended, on_cpu)
        else:
            # A loss goes through some 64 roundings in sequence (tolerance.py), here to 8 bits, of signs that do not depend on
            # each other.
            assert relative_difference(ended.logged("loss"), on_cpu.logged("loss")) < math.sqrt(64) * 2.0**-8
