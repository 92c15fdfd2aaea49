"""Runs of the program on a machine with GPUs, and the report of what they showed."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

SHAPES = {
    "tiny": dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=4096, tie_word_embeddings=True),
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                 num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    # A quarter of the layers of Qwen2.5-7B: its shapes, in what one GPU holds with AdamW's states.
    "7b-of-7-layers": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=7, num_attention_heads=28,
                           num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False),
    # Two of the 48 layers of Qwen3-30B-A3B.
    "30b-a3b-of-2-layers": dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=2048,
                                intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
                                norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], num_hidden_layers=2,
                                num_attention_heads=32, num_key_value_heads=4, head_dim=128, vocab_size=151936,
                                tie_word_embeddings=False),
    # Four of the 32 layers of Qwen3.5-9B: three GatedDeltaNets and an attention.
    "qwen3.5-9b-of-4-layers": dict(architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", hidden_size=4096,
                                   intermediate_size=12288, num_hidden_layers=4, num_attention_heads=16,
                                   num_key_value_heads=4, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=32,
                                   linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
                                   full_attention_interval=4, vocab_size=248320, tie_word_embeddings=True),
}
SHAPES["1.5b-of-4-layers"] = SHAPES["1.5b"] | dict(num_hidden_layers=4)


class Report:
    """Lines for people; each check passed, failed, or was not run for a reason."""

    def __init__(self):
        self.lines, self.failed = [], []

    def say(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def check(self, name, passed, detail=""):
        self.say(f"- {'passed' if passed else '**FAILED**'}: {name}" + (f": {detail}" if detail else ""))
        if not passed:
            self.failed.append(name)

    def left_out(self, name, why):
        self.say(f"- not run: {name}: {why}")


def run(command, log=None, timeout=None, **variables):
    """(status, output, seconds)"""
    begin = time.time()
    try:
        ended = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", timeout=timeout, env=os.environ | variables)
        status, text = ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as stopped:
        status, text = 124, (stopped.stdout or b"").decode(errors="replace") + f"\nstopped after {timeout} s"
    if log:
        log.write_text(text)
    return status, text, time.time() - begin


def last_lines(text, count=12):
    return "\n".join("      " + line for line in text.strip().splitlines()[-count:])


def found_by_sanitizer(text):
    """What compute-sanitizer has found, by the sum that it writes in the end; empty where it has seen the program, and
    nothing wrong in it."""
    sums = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    if not sums:
        return "it has written no sum of errors, as where it has not seen the program"
    return "" if not any(map(int, sums)) else f"it has found {sum(map(int, sums))} errors"


def num_gpus():
    status, text, _ = run(["nvidia-smi", "-L"])
    return text.count("GPU ") if status == 0 else 0


def case_of(text):
    """(model, documents, more keys) of model:documents or model:documents:key=value;key=value."""
    shape, documents, *keys = text.split(":", 2)
    return shape, documents, dict(pair.split("=", 1) for pair in (keys[0].split(";") if keys else []))


def lengths_of(documents):
    """Tokens of each document of a row: of one in 4096, of nine in 4096+8x64."""
    lengths = []
    for part in str(documents).split("+"):
        count, _, length = part.rpartition("x")
        lengths += [int(length)] * int(count or 1)
    return lengths


def cases_of(shape, documents):
    """The cases that workload.py makes of them. Answers leave a prompt in a short one too."""
    from speed.workload import Case

    return [Case(length, SHAPES[shape]["vocab_size"], 0.9 if length >= 256 else 0.5, True) for length in lengths_of(documents)]


def settings(options, shape, documents, name, **changes):
    """A run whose rows have these documents each, `documents` as for lengths_of()."""
    lengths = lengths_of(documents)
    keys = {"model_name_or_path": str(make_model(options, shape)), "stage": "sft", "do_train": True,
            "finetuning_type": "full", "dataset": "rows", "dataset_dir": str(make_row_data(options, shape, documents)),
            "template": "chatml", "cutoff_len": sum(lengths), "neat_packing": len(lengths) > 1,
            "output_dir": str(options.work / name), "overwrite_output_dir": True, "disable_shuffling": True,
            "logging_steps": 1, "save_strategy": "no", "max_steps": 5, "per_device_train_batch_size": 1, "learning_rate": 1e-5,
            "lr_scheduler_type": "constant", "bf16": True, "disable_tqdm": True, "nproc_per_node": 1} | changes
    path = options.work / f"{name}.yaml"
    path.write_text(json.dumps(keys))
    return path


def make_model(options, shape):
    from speed.workload import train_tokenizer

    folder = options.work / f"model-{shape}"
    if not (folder / "config.json").exists():
        seed = options.work / "seed"
        train_tokenizer(seed)
        (seed / "config.json").write_text(json.dumps({
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
            "max_position_embeddings": 1048576, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "initializer_range": 0.02,
            "attention_dropout": 0.0, "use_sliding_window": False, "torch_dtype": "bfloat16", "bos_token_id": 0,
            "eos_token_id": 2, "pad_token_id": 0} | SHAPES[shape]))
        subprocess.check_call([options.build / "longspan", "init", "--config", seed / "config.json", "--output", folder,
                               "--dtype", "bfloat16"], stdout=subprocess.DEVNULL)
    return folder


def make_row_data(options, shape, documents):
    """Six rows, or the documents of one, which packing puts into one again."""
    from speed.workload import make_documents

    folder = options.work / f"rows-{documents}"
    if not folder.exists():
        cases = cases_of(shape, documents)
        make_documents(folder, make_model(options, shape), cases * 6 if len(cases) == 1 else cases)
    return folder


def logged(options, name):
    state = json.loads((options.work / name / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]


def train(options, report, name, config, timeout=300, wrapper=(), **variables):
    """The run's log lines; None, and a failure, where it did not end well."""
    status, text, seconds = run([*wrapper, options.build / "longspan", "train", config], options.work / f"{name}.log",
                                            timeout, **variables)
    if status != 0:
        report.check(name, False, f"ended with {status} after {seconds:.0f} s\n{last_lines(text)}")
        return None
    return logged(options, name)


def flops(shape, documents, labels):
    """FLOPs of a step on one row of these documents, without recomputation: 6 for each token and each parameter of the
    blocks that it meets, attention's causal pairs, the rule of GatedDeltaNets in chunks of 64 tokens, the head at
    labels."""
    s = SHAPES[shape]
    D, L, N, M = (s[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"))
    H = s.get("head_dim", D // N)
    if "num_experts" in s:
        mlp = 3 * D * s["moe_intermediate_size"] * s["num_experts_per_tok"] + D * s["num_experts"]
    else:
        mlp = 3 * D * s["intermediate_size"]
    attention, recurrent, rule, num_attentions = D * H * (2 * N + 2 * M), 0, 0, L
    if "full_attention_interval" in s:  # its queries have gates
        attention += D * H * N
        C, K, W = 64, s["linear_key_head_dim"], s["linear_value_head_dim"]
        keys, heads = s["linear_num_key_heads"] * K, s["linear_num_value_heads"]
        recurrent = D * (2 * keys + 3 * heads * W + 2 * heads)
        # Products with keys; of each value head the inverse with keys and values, the output, two products with the state.
        rule = 4 * C * keys + heads * (2 * C * (K + W) + 2 * (K + C) * W + 4 * K * W)
        num_attentions = L // s["full_attention_interval"]
    blocks = L * mlp + num_attentions * attention + (L - num_attentions) * recurrent
    pairs = sum(length * (length + 1) for length in lengths_of(documents))
    of_tokens = (6 * blocks + 3 * rule * (L - num_attentions)) * sum(lengths_of(documents))
    return of_tokens + 6 * N * H * pairs * num_attentions + 6 * D * s["vocab_size"] * labels


@contextlib.contextmanager
def left_free(size):
    """Bytes of the first GPU, while it lives: a process holds the rest. Gives the bytes that are free."""
    hold = ("import sys, torch; free = lambda: torch.cuda.mem_get_info()[0]; "
            "held = torch.empty(max(0, free() - int(sys.argv[1])), dtype=torch.uint8, device='cuda'); "
            "print(free(), flush=True); sys.stdin.read()")
    command = [sys.executable, "-c", hold, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            yield int(holder.stdout.readline())
        finally:
            holder.stdin.close()


class UsedMemory:
    """Of the first GPU, by nvidia-smi, while it lives: bytes before, and at most."""

    def __enter__(self):
        self.before = self.most = self.sample()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def sample(self):
        status, text, _ = run(["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"])
        return int(text.split()[0]) * 2**20 if status == 0 else 0

    def watch(self):
        while not self.stop.wait(0.1):
            self.most = max(self.most, self.sample())
