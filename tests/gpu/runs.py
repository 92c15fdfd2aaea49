"""Runs of the program on a machine with GPUs, and the report of what they showed."""

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
    """(model, tokens, more keys) of model:tokens or model:tokens:key=value;key=value."""
    shape, tokens, *keys = text.split(":", 2)
    return shape, int(tokens), dict(pair.split("=", 1) for pair in (keys[0].split(";") if keys else []))


def settings(options, shape, tokens, name, **changes):
    keys = {"model_name_or_path": str(make_model(options, shape)), "stage": "sft", "do_train": True,
            "finetuning_type": "full", "dataset": "rows", "dataset_dir": str(make_row_data(options, shape, tokens)),
            "template": "chatml", "cutoff_len": tokens, "output_dir": str(options.work / name), "overwrite_output_dir": True,
            "disable_shuffling": True, "logging_steps": 1, "save_strategy": "no", "max_steps": 5,
            "per_device_train_batch_size": 1, "learning_rate": 1e-5, "lr_scheduler_type": "constant", "bf16": True,
            "disable_tqdm": True, "nproc_per_node": 1} | changes
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


def make_row_data(options, shape, tokens):
    from speed.workload import Case, make_rows

    folder = options.work / f"rows-{tokens}"
    if not folder.exists():
        make_rows(folder, make_model(options, shape), Case(tokens, SHAPES[shape]["vocab_size"], 0.9, True), 6)
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


def flops(shape, tokens, labels):
    """Of a step on one row, without recomputation: 6 for each token and each parameter of the blocks that it meets,
    attention's causal pairs, the head at labels. Without the recurrences of GatedDeltaNets, which are some hundredths."""
    s = SHAPES[shape]
    D, L, N, M = (s[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"))
    H = s.get("head_dim", D // N)
    if "num_experts" in s:
        mlp = 3 * D * s["moe_intermediate_size"] * s["num_experts_per_tok"] + D * s["num_experts"]
    else:
        mlp = 3 * D * s["intermediate_size"]
    attention, recurrent, num_attentions = D * H * (2 * N + 2 * M), 0, L
    if "full_attention_interval" in s:  # its queries have gates
        attention += D * H * N
        keys = s["linear_num_key_heads"] * s["linear_key_head_dim"]
        values = s["linear_num_value_heads"] * s["linear_value_head_dim"]
        recurrent = D * (2 * keys + 3 * values + 2 * s["linear_num_value_heads"])
        num_attentions = L // s["full_attention_interval"]
    blocks = L * mlp + num_attentions * attention + (L - num_attentions) * recurrent
    return 6 * blocks * tokens + 6 * N * H * tokens * (tokens + 1) * num_attentions + 6 * D * s["vocab_size"] * labels


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
