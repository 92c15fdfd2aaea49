"""torch's own host code of CUDA under the program, over libraries whose kernels do nothing: its allocator, its launches and
its process groups for NCCL. Numbers mean nothing there; how a run begins, what it asks of a GPU and how it ends do."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, Running, add_dataset, settings_of, words_of_real_text, write_model
from faults import wait_for
from shared import made_once
from test_stages import STAGES, stage_data  # noqa: F401

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "null_cuda"))
from hole_model import write_hole  # noqa: E402
from null_gpus import counts_of, null_environment, null_program, why_none  # noqa: E402

pytestmark = pytest.mark.skipif(bool(why_none()), reason=why_none())

CONTEXT = 512 << 20  # bytes that a null GPU's context takes


def cache_of_kernels(models, data, place):
    """A folder of caches with all kernels. One process compiles them, in 20 s of its processor: with an empty cache each rank
    of the tests that begin first would."""
    def make(folder):
        environment = null_environment(BUILD, XDG_CACHE_HOME=str(folder))
        keys = settings_of(models["qwen2"], data, folder / "run", max_steps=1, bf16=True, device="cuda")
        ended = Running(keys, program=null_program(BUILD), **environment).wait(300)
        assert ended.status == 0, ended.text

    return str(made_once(place / "kernels", make))


@pytest.fixture
def start(models, data, tmp_path, place):
    """start(num_ranks, variables, **keys): a run, and the folder of what its ranks count."""
    count = 0

    def run(num_ranks=1, variables=None, model="qwen2", **keys):
        nonlocal count
        count += 1
        settings = settings_of(models.get(model, model), data, tmp_path / f"run{count}", max_steps=3, bf16=True)
        report = tmp_path / f"report{count}"
        report.mkdir()
        environment = null_environment(BUILD, num_ranks, report, XDG_CACHE_HOME=cache_of_kernels(models, data, place),
                                       **(variables or {}))
        return Running(settings | {"device": "cuda"} | keys, num_ranks, program=null_program(BUILD), **environment), report

    return run


@pytest.fixture
def train(start):
    def run(num_ranks=1, variables=None, **keys):
        running, report = start(num_ranks, variables, **keys)
        ended = running.wait(120)
        assert set(ended.statuses) == {0}, ended.text
        counts = counts_of(report)
        assert len(counts) == num_ranks
        for rank in counts:
            assert "complaints" not in rank["calls"], ended.text
            # Communicators are let go before the process ends.
            calls = rank["calls"]
            made = calls.get("ncclCommInitRank", 0) + calls.get("ncclCommSplit", 0)
            assert made == calls.get("ncclCommDestroy", 0) + calls.get("ncclCommAbort", 0), calls
            # All other groups are split from the group of all ranks.
            assert calls.get("ncclCommInitRank", 0) == (num_ranks > 1), calls
        for text in ended.texts:
            assert "terminate called" not in text and "WARNING" not in text, text
        return ended, counts

    return run


def of_steps(few, more, what, num_steps):
    """What each step more has added, by name."""
    names = few[what].keys() | more[what].keys()
    added = {name: more[what].get(name, 0) - few[what].get(name, 0) for name in names}
    assert all(count % num_steps == 0 for count in added.values()), added
    return {name: count // num_steps for name, count in added.items() if count}


def test_launches_and_waits_of_a_step(train):
    """A step of four rows of a model of two layers, with Longspan's own kernels: each is as those before it."""
    (_, (few,)), (_, (more,)) = (train(max_steps=steps) for steps in (3, 6))
    launches, waits = (of_steps(few, more, what, 3) for what in ("launches", "waits"))
    assert waits == {"cudaStreamSynchronize": 1}, waits
    assert sum(launches.values()) < 1000, launches
    own = {name for name in launches if "(" not in name and not name.startswith("cublas")}
    assert own, launches


@pytest.mark.parametrize("asked", [False, True])
def test_fp32_is_rounded_on_request_alone(train, asked):
    """Not by torch's variable either."""
    _, (counts,) = train(bf16=False, tf32=asked, variables={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"})
    gemms = {name for name in counts["launches"] if name.startswith("cublas")}
    assert gemms and {name.endswith("in TF32") for name in gemms} == {asked}, gemms


def test_a_driver_that_refuses_the_code(train):
    """ATen's operators compute what the kernels over rows would have, and one warning says so."""
    ended, (counts,) = train(variables={"NULL_CUDA_MODULES": "refused"})
    assert ended.text.count("the kernels over rows cannot be used on this GPU") == 1, ended.text
    assert all("(" in name or name.startswith("cublas") for name in counts["launches"]), counts["launches"]


def test_a_driver_that_refuses_the_code_on_one_gpu(train):
    ended, _ = train(2, {"NULL_CUDA_MODULES": "refused:1"}, sequence_parallel_size=2)
    assert ended.text.count("the kernels over rows cannot be used on this GPU") == 1, ended.text
    assert "Only of rank 1" in ended.texts[0], ended.text


@pytest.mark.parametrize("why, status, said", [("full", 1, "Settings that take less memory:"),
                                               ("broken", 2, "CUDA error: an illegal memory access")])
def test_no_kernels_for_lack_of_memory_or_by_an_error_of_the_gpu(start, why, status, said):
    """A fallback would hide both."""
    running, _ = start(variables={"NULL_CUDA_MODULES": why})
    ended = running.wait(60)
    assert ended.status == status and said in ended.text and "take their place" not in ended.text, ended.text


def test_all_kernels_are_loaded_at_the_start(train):
    """Also those that this model does not use: what is loaded does not depend on the step that first needs it. Code takes
    memory, and the last of it comes when the GPU has nothing else yet: neither weights nor a row's activations."""
    _, (counts,) = train(max_steps=1)
    parts = (ROOT / "longspan" / "cuda" / "kernel_sources.h").read_text().split("enum class Part {")[1].split("}")[0].count(",") + 1
    assert counts["calls"]["cuModuleLoadData"] == parts, counts["calls"]
    assert counts["calls"]["cuFuncLoad"] > parts, counts["calls"]
    assert counts["taken_at_last_load"] == CONTEXT + counts["bytes"]["of kernels"] < counts["peak_bytes"][0], counts


WAYS = {
    "heads": dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses"),
    "a ring": dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring"),
    "ZeRO 1": dict(gradient_accumulation_steps=2, zero_stage=1),
    "ZeRO 3": dict(gradient_accumulation_steps=2, zero_stage=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_two_gpus(train, way):
    """Ranks begin the same collectives, of the same sizes, or NCCL's stand-in refuses them."""
    ended, (first, second) = train(2, **WAYS[way])
    assert len(ended.logged("loss")) == 3
    assert first["collectives"] == second["collectives"] and first["collectives"], (first, second)


ALL_ON_HOST = dict(zero_stage=3, offload_params=True, offload_optimizer=True, offload_activations="true")
# What is computed on GPUs, in as few runs as hold it: model, GPUs, keys.
DETERMINISTIC = {
    "packed, windows, 8-bit states, evaluation": ("gemma3", 1, dict(
        pure_bf16=True, neat_packing=True, cutoff_len=128, optim="adamw_8bit", eval_dataset="held_out",
        eval_strategy="steps", eval_steps=2)),
    "pairs that share a prompt, dropout": ("llama", 1, dict(
        bf16=True, stage="dpo", dataset="pairs", pref_share_prompt=True, finetuning_type="lora", lora_dropout=0.1,
        use_dora=True)),
    "experts one after the other": ("qwen3_moe", 1, dict(bf16=False)),
    "experts, Muon": ("qwen3_moe", 1, dict(bf16=True, moe_aux_loss_coef=0.01, optim="muon")),
    "clamped experts, sinks": ("gpt_oss", 1, dict(bf16=True)),
    "hybrid, texts": ("qwen3_5", 1, dict(pure_bf16=True) | STAGES["pt"]),
    "latents, rewards, all on the host": ("deepseek_v3", 2, dict(pure_bf16=True, gradient_accumulation_steps=2) |
                                          STAGES["rm"] | ALL_ON_HOST),
    "fp32, KTO, a ring": ("qwen2", 2, dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring") |
                          STAGES["kto"]),
}


@pytest.mark.parametrize("case", DETERMINISTIC)
def test_every_operator_is_deterministic(train, stage_data, place, case):  # noqa: F811
    """ATen refuses operators of which it has no kernel that gives the same bits each time."""
    kind, num_ranks, keys = DETERMINISTIC[case]
    model = str(made_once(place / kind, lambda folder: write_model(folder, kind)))
    ended, _ = train(num_ranks, full_determinism=True, model=model, dataset_dir=stage_data, max_steps=2,
                     **dict(bf16=False) | keys)
    assert len(ended.logged("loss")) == 2


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_told_to_stop(start, num_ranks):
    keys = dict(sequence_parallel_size=2) if num_ranks > 1 else {}
    running, _ = start(num_ranks, max_steps=100000, **keys)
    wait_for(running, "'loss'")
    running.ranks[-1].send_signal(signal.SIGTERM)
    ended = running.wait(60)
    assert set(ended.statuses) == {0}, ended.text
    assert ended.text.count("Stopped after step") == 1 and list(ended.output_dir.glob("checkpoint-*"))


REFUSED = "null NCCL refuses this message,; as it was told to"
LOST = "null NCCL has lost another rank,; as it was told to"


def errors_of(text):
    """Lines that end a run: not a warning that quotes an error of cuDNN, which null CUDA has not."""
    return [line for line in text.splitlines() if line.startswith(("error:", "internal error:"))]


@pytest.mark.long
@pytest.mark.parametrize("rank, ways, ddp_timeout", [(1, "refused", 600), (1, "later", 600), (0, "later", 600),
                                                     (1, "refused later", 600), (0, "refused later", 8)])
def test_an_error_of_nccl_is_said(start, rank, ways, ddp_timeout):
    """In all its lines and once, by the rank that it is of; the other ends too, and says why. Where a call is refused, its
    caller says it; what the network reports later is found by torch's watchdog, while the caller waits, or while rank 0
    waits for others to read from the store that it serves. The store goes with it."""
    refused, lost = "refused" in ways, "later" in ways
    variables = dict(NULL_NCCL_FAIL=f"{rank}:60") if refused else {}
    variables |= dict(NULL_NCCL_BREAK=f"{rank}:60") if lost else {}
    keys = dict(max_steps=100000, save_steps=1000000, sequence_parallel_size=2, ddp_timeout=ddp_timeout)
    running, _ = start(2, variables, **keys)
    ended = running.wait(60)
    assert ended.statuses == [1, 1], ended.text
    (own,), (other,) = errors_of(ended.texts[rank]), errors_of(ended.texts[1 - rank])
    assert own.startswith("error: ") and f"Rank {rank} of 2" in own and "resume_from_checkpoint" in own, own
    assert other.startswith("error: ") and f"Rank {rank} (host " in other and " has ended, in " in other, other
    for said in (own, other):
        assert (refused and REFUSED in said) or (lost and LOST in said), said
    for text in ended.texts:
        assert not any(noise in text for noise in ("terminate called", "what():", "frame #", "watchdog", "All ranks live")), text
    assert not list(ended.output_dir.glob("checkpoint-*")) and not list(ended.output_dir.glob("*.safetensors"))


@pytest.mark.parametrize("variable, expected", [("NULL_NCCL_FAIL", REFUSED), ("NULL_NCCL_BREAK", LOST)])
def test_an_error_of_nccl_is_said_by_a_benchmark(models, data, tmp_path, place, variable, expected):
    command = [null_program(BUILD), "bench", "attention", "--device", "cuda", "--ranks", "2", "--tokens", "96", "--dtype",
               "bf16", "--repeats", "1000", "--methods", "ulysses", "--output", tmp_path / "bench"]
    environment = os.environ | null_environment(BUILD, 2, XDG_CACHE_HOME=cache_of_kernels(models, data, place), OMP_NUM_THREADS="1")
    done = subprocess.run(command, env=environment | {variable: "1:60"}, capture_output=True, text=True, timeout=120)
    (said,) = errors_of(done.stderr)
    assert done.returncode == 1 and said.startswith("error: Rank 1 of 2") and expected in said, done.stdout + done.stderr
    assert "terminate called" not in done.stderr and "frame #" not in done.stderr, done.stderr


@pytest.mark.long
def test_a_killed_rank_is_to_blame_and_not_who_misses_it(start):
    """The watchdog of the rank that lives finds only that the network has failed."""
    running, _ = start(2, dict(NULL_NCCL_BREAK="0:60"), max_steps=100000, sequence_parallel_size=2, ddp_timeout=600)
    wait_for(running, "'loss'")
    running.ranks[1].kill()
    ended = running.wait(60)
    (said,) = errors_of(ended.texts[0])
    assert ended.statuses == [1, -signal.SIGKILL], ended.text
    assert LOST in said and f"Rank 1 (host " in said and f"process {running.ranks[1].pid})" in said, said
    assert "has ended without a word" in said, said


def test_nothing_is_sent_where_nothing_is_to_send():
    """torch's process group has no work to wait for then."""
    environment = os.environ | null_environment(BUILD, 2)
    command = [BUILD / "unit_tests", "-tc=cuda groups: nothing is sent*"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "1 passed" in done.stdout and "not run" not in done.stdout, done.stdout + done.stderr


def test_a_gpu_that_is_too_small(start):
    running, _ = start(variables={"NULL_CUDA_MEMORY": str((CONTEXT >> 20) + 24)})
    ended = running.wait(60)
    assert ended.status == 1 and len(errors_of(ended.text)) == 1, ended.text
    assert "out of memory" in ended.text and "Settings that take less memory:" in ended.text


TOKENS = 16384
WIDE = dict(vocab_size=4096, hidden_size=2048, intermediate_size=5632, num_hidden_layers=6, num_attention_heads=16,
            num_key_value_heads=4)
# Of so many bytes: rows of so many tokens, whose tensors are a hundred MiB each, and states of GiBs.
LARGE = {
    "dense": ("llama", WIDE | dict(head_dim=128, rope_scaling=None)),
    "vocabulary": ("qwen2", WIDE | dict(vocab_size=152064, num_hidden_layers=2, tie_word_embeddings=True)),
    "norms behind": ("gemma3", WIDE | dict(num_attention_heads=8, head_dim=256, sliding_window=1024,
                                           layer_types=["sliding_attention"] * 5 + ["full_attention"])),
    "hybrid": ("qwen3_5", WIDE | dict(num_hidden_layers=4, head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
                                      linear_key_head_dim=128, linear_value_head_dim=128)),
    "latent": ("deepseek_v3", WIDE | dict(num_hidden_layers=3, first_k_dense_replace=2, q_lora_rank=1536, kv_lora_rank=512,
                                          qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)),
    # A small one, whose last layer, which computes rows with a label alone, has no experts.
    "mixture": ("qwen3_moe", WIDE | dict(hidden_size=256, intermediate_size=256, num_hidden_layers=2, mlp_only_layers=[1],
                                         num_attention_heads=4, head_dim=128, moe_intermediate_size=64, num_experts=16,
                                         num_experts_per_tok=4)),
    "hybrid mixture": ("qwen3_next", WIDE | dict(
        num_hidden_layers=4, mlp_only_layers=[], head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, moe_intermediate_size=1024, shared_expert_intermediate_size=512,
        num_experts=16, num_experts_per_tok=4)),
    "experts": ("gpt_oss", WIDE | dict(num_hidden_layers=5, head_dim=64, intermediate_size=1024, num_attention_heads=32,
                                       num_local_experts=16, num_experts_per_tok=4)),
}
# Of each row of so many (some have no label, and do not come to the last layer's experts) the same four experts of 16 are
# chosen: that is the most that a layer may work with, where its experts are not worked on at once.
ROUTED = {"experts": f"{16 * 8}:{','.join([str(TOKENS - 16)] * 4)}"}
LORA = dict(finetuning_type="lora")
# Recurrences pass their states on, and exchange no rows.
SLOW = dict(inside_bytes_per_second=1e8, between_bytes_per_second=1e8, inside_delay_seconds=1e-5,
            between_delay_seconds=1e-5, ranks_per_machine=2, gpus=True)
PEAKS = {
    "full": ("dense", 1, dict(kept_mlp_layers=0)),
    "several rows a step": ("dense", 1, dict(gradient_accumulation_steps=2, bf16=False, pure_bf16=True)),
    "gate and up of some layers": ("dense", 1, dict(kept_mlp_layers=3)),
    "without checkpointing": ("dense", 1, LORA | dict(disable_gradient_checkpointing=True)),
    "ZeRO 1": ("dense", 2, dict(zero_stage=1)),
    "ZeRO 1, several rows a step": ("dense", 2, dict(zero_stage=1, gradient_accumulation_steps=2, sequence_parallel_size=2,
                                                     sequence_parallel_mode="ulysses")),
    "ZeRO 2": ("dense", 2, dict(zero_stage=2)),
    "heads": ("dense", 2, LORA | dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses")),
    "the head": ("vocabulary", 1, dict()),
    "norms behind": ("norms behind", 1, LORA),
    "hybrid": ("hybrid", 1, LORA),
    "hybrid, a ring": ("hybrid", 2, LORA | dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring")),
    "hybrid, states in a ring": ("hybrid", 2, LORA | dict(sequence_parallel_size=2, sequence_parallel_mode="ring",
                                                          network_rates=SLOW)),
    "latent attention": ("latent", 1, LORA),
    "experts": ("experts", 1, LORA),
    "experts one after the other": ("experts", 1, LORA | dict(lora_target="all", lora_rank=4)),
    "activations on the host": ("dense", 1, LORA | dict(offload_activations=True, tiled_mlp=16)),
    "the head in bf16": ("vocabulary", 1, dict(bf16=False, pure_bf16=True)),
    "the same bits each time": ("dense", 1, LORA | dict(full_determinism=True)),
}
# What the account has above the peak: a layer's gradients as if all were there from its first moment on, parts of products
# that a new torch does not make, and the fullest rank of several.
MOST_ABOVE = 0.05


@pytest.fixture
def large(place):
    """large(name): a model of LARGE, and a folder with rows of TOKENS tokens."""
    def row(folder):
        words = (words_of_real_text() * 20)[:TOKENS]
        add_dataset(folder, "chats", [dict(instruction="a", input="", output=" ".join(words))] * 2)

    def make(name):
        kind, shape = LARGE[name]
        model = made_once(place / f"large {name}", lambda folder: write_hole(folder, kind, **shape))
        return str(model), str(made_once(place / "large_rows", row))

    return make


REFUSED_KERNELS = dict(NULL_CUDA_MODULES="refused")


@pytest.mark.parametrize("case, variables", [(case, {}) for case in PEAKS] + [("the head", REFUSED_KERNELS)])
def test_the_account_is_near_the_peak_and_not_below(large, train, tmp_path, case, variables):
    """What torch's allocator has given out at most, of tensors that take no memory here."""
    name, num_ranks, keys = PEAKS[case]
    model, rows = large(name)
    if "network_rates" in keys:
        (tmp_path / "rates.json").write_text(json.dumps(dict(rates=keys["network_rates"])))
        keys = keys | dict(network_rates=str(tmp_path / "rates.json"))
    routed = dict(NULL_CUDA_COUNTS=ROUTED[name]) if name in ROUTED else {}
    ended, _ = train(num_ranks, dict(NULL_CUDA_MEMORY=str(80 << 10)) | routed | variables,
                     **dict(model=model, dataset_dir=rows, cutoff_len=TOKENS, max_steps=1, gradient_accumulation_steps=1) | keys)
    memory = json.loads((ended.output_dir / "memory.json").read_text())
    assert memory["facts"]["num_tokens"] == TOKENS
    peak = max(rank["device"] for rank in memory["measured"])
    assert peak <= memory["device"] <= (1 + MOST_ABOVE) * peak, memory


def test_launches_of_recurrences(large, train):
    """They grow with the parts of a row, of 2 GiB each (spec/composed_rule.h): all chunks of a part in one launch, in the
    forward, where the checkpointed layer is computed again, and in its backward, which computes the part again."""
    model, rows = large("hybrid")
    counts, copied = {}, {}
    for parts, tokens in ((1, 2048), (2, TOKENS)):
        _, (count,) = train(1, dict(NULL_CUDA_MEMORY=str(80 << 10)), **LORA | dict(
            model=model, dataset_dir=rows, cutoff_len=tokens, max_steps=1, gradient_accumulation_steps=1))
        counts[parts], copied[tokens] = count["launches"], count["bytes"]["to GPUs"]
        # Three layers. The states pass forward three times, and their gradients once.
        own = {name: launches for name, launches in count["launches"].items() if name.startswith(("unit_heads", "delta_"))}
        assert own == {"unit_heads_b": 9 * parts, "unit_heads_backward_b": 3 * parts, "delta_chunks_b": 9 * parts,
                       "delta_chunks_backward_b": 3 * parts, "delta_scan_b": 12 * parts}, own
    # 3 batched gemms in a forward, 10 in a backward, for each part of a layer, however many chunks it has.
    batched = [counts[parts]["cublasGemmStridedBatchedEx"] for parts in counts]
    assert batched[1] - batched[0] == 3 * (3 + 3 + 10), batched
    one, two = (sum(launches.values()) for launches in counts.values())
    print("launches of a run:", one, "with one part,", two, "with two")
    # 31 of each part in each layer, and those of other layers' chunks; a launch for each chunk of 64 tokens would be thousands.
    assert 0 < two - one < 3 * 31 + 850, (one, two)
    # A token's row has five numbers of 8 bytes. Recurrences have its document and its number of earlier tokens, 9 bytes, which
    # three layers use twice, and which travel once.
    of_token = (copied[TOKENS] - copied[2048]) / (TOKENS - 2048)
    assert 5 * 8 + 9 <= of_token < 5 * 8 + 2 * 9, of_token
