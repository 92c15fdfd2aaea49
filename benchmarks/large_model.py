"""A model that does not fit into one process's share of the machine: one step of a long row on a few
processes with ZeRO-3 and everything offloaded, the account of its states against what was measured."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed.watch import process_tree
from speed.workload import Case, make_rows, train_tokenizer

GIB = 2**30
# Llama-shaped, heads of 128 as Llama 3's and Qwen's: 1.01 billion parameters.
SHAPE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 20,
         "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192, help="of the row (default 8192)")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--sequence-parallel", type=int, help="how many of them share a row (default all)")
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--keys", nargs="*", default=["bf16=true"],
                        help="more keys of the configuration, key=value (default bf16=true)")
    parser.add_argument("--work", type=Path, default=Path("build/bench/large"), help="where it happens")
    parser.add_argument("--program", default=os.environ.get("LONGSPAN", "build/longspan"))
    return parser.parse_args()


def make_model(options: argparse.Namespace, shape: dict) -> Path:
    """A random checkpoint, kept between calls. In bf16: half the disk, and masters are fp32 anyway."""
    folder = options.work / f"model-{shape['num_hidden_layers']}"
    if (folder / "config.json").exists():
        return folder
    seed = options.work / "seed"
    train_tokenizer(seed)
    (seed / "config.json").write_text(json.dumps(shape | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 500000.0,
        "initializer_range": 0.02, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}))
    subprocess.check_call([options.program, "init", "--config", seed / "config.json", "--output", folder,
                           "--dtype", "bfloat16"])
    return folder


def num_parameters(shape: dict) -> tuple[int, int]:
    """All, and those of the largest unit that is gathered at once."""
    D, inner = shape["hidden_size"], shape["intermediate_size"]
    kv = D * shape["num_key_value_heads"] // shape["num_attention_heads"]
    block = 2 * D * D + 2 * D * kv + 3 * D * inner + 2 * D
    head = shape["vocab_size"] * D
    return shape["num_hidden_layers"] * block + 2 * head + D, max(block, head)


def anonymous_bytes(pid: int) -> int:
    """Memory of its own, without pages of files that are mapped."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().split("\n"):
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def main() -> None:
    options = parse_arguments()
    shape = SHAPE | {"num_hidden_layers": options.layers}
    options.work.mkdir(parents=True, exist_ok=True)
    model = make_model(options, shape)
    data = options.work / f"rows-{options.tokens}"
    if not data.exists():
        make_rows(data, model, Case(options.tokens, shape["vocab_size"], 0.5, True), options.steps)
    output = options.work / "run"
    shutil.rmtree(output, ignore_errors=True)
    settings = {
        "model_name_or_path": str(model), "stage": "sft", "do_train": True, "finetuning_type": "full",
        "dataset": "rows", "dataset_dir": str(data), "cutoff_len": options.tokens, "template": "chatml",
        "output_dir": str(output), "save_strategy": "no", "logging_steps": 1, "max_steps": options.steps,
        "per_device_train_batch_size": 1, "learning_rate": 1e-5, "zero_stage": 3,
        "offload_optimizer": True, "offload_params": True, "device": "cpu", "nproc_per_node": options.ranks,
        "sequence_parallel_size": options.sequence_parallel or options.ranks}
    config = options.work / "run.yaml"
    config.write_text(json.dumps(settings))
    start, program = time.time(), os.path.realpath(options.program)
    log = open(options.work / "run.log", "w")
    run = subprocess.Popen([options.program, "train", config, *options.keys], stdout=log, stderr=subprocess.STDOUT)
    peaks: dict[int, int] = {}
    lowest_free = GIB * 1024
    while run.poll() is None:
        for pid in process_tree(run.pid):
            try:
                if os.readlink(f"/proc/{pid}/exe") == program:
                    peaks[pid] = max(peaks.get(pid, 0), anonymous_bytes(pid))
            except OSError:
                continue
        free = next(line for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
        lowest_free = min(lowest_free, int(free.split()[1]) * 1024)
        time.sleep(0.2)
    text = (options.work / "run.log").read_text()
    print(text[max(0, text.find("\nModel ")):] if run.returncode == 0 else text)
    if run.returncode != 0:
        raise SystemExit(f"longspan train ended with {run.returncode}")

    total, largest = num_parameters(shape)
    share = total / options.ranks
    eight_bit = any("8bit" in key for key in options.keys)
    account = {"masters (fp32)": 4 * share, "gradients (fp32)": 4 * share,
               "moments": (2 if eight_bit else 8) * share}
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    print(f"\n{total / 1e9:.2f} billion parameters, {options.tokens} tokens, {options.ranks} processes: "
          f"{options.steps} step(s) in {time.time() - start:.0f} s with reading and saving")
    print(f"loss {history[0]['loss']}, grad_norm {history[0]['grad_norm']}")
    print("\nAccount of a process's share of the states")
    for name, num_bytes in account.items():
        print(f"  {name:20} {num_bytes / GIB:6.2f} GiB")
    print(f"  {'in all':20} {sum(account.values()) / GIB:6.2f} GiB; undivided "
          f"{options.ranks * sum(account.values()) / GIB:.2f} GiB; the largest "
          f"unit {4 * largest / GIB:.2f} GiB in fp32")
    print("Measured peak of a process (RssAnon): "
          + ", ".join(f"{peak / GIB:.2f} GiB" for peak in sorted(peaks.values(), reverse=True)[: options.ranks]))
    print(f"Least memory that the machine had left: {lowest_free / GIB:.2f} GiB")


if __name__ == "__main__":
    main()
