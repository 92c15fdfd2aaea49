"""The demo: one model trained on long rows three times - without sequence parallelism, with Ulysses on two
processes, with a zigzag ring on two processes - and the three loss curves in one picture.

The experiment is the one by which sequence parallelism is usually shown to be correct (30 long documents, full-parameter
fine-tuning, accumulation 8, 8 epochs, P = 1 against P = 2), at laptop scale. The text is the documentation inside
Python's own standard library; nothing is downloaded. Everything goes through the `longspan` command.
"""

import ast
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time

LONGSPAN = os.environ.get("LONGSPAN", "longspan")
OUTPUT = pathlib.Path("demo-output")
NUM_DOCUMENTS = 30
VOCAB_SIZE = 2048

MODEL = {  # the shape of Qwen2.5, small: 6 query heads that share 2 kv heads, tied embeddings, biases on q, k, v
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "torch_dtype": "float32",
}

TRAINING = """\
# {title}
model_name_or_path: {output}/model
stage: sft
do_train: true
finetuning_type: full

dataset: python_docs
dataset_dir: {output}/data
template: chatml
cutoff_len: 2048

output_dir: {output}/{name}
overwrite_output_dir: true
logging_steps: 1
save_strategy: "no"
plot_loss: true

per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-3
num_train_epochs: 8
lr_scheduler_type: cosine
warmup_ratio: 0.1
seed: 42
{parallel}"""

RUNS = [
    ("sp1", "One process holds whole rows", ""),
    ("ulysses", "Each row on two processes: heads are exchanged", "ulysses"),
    ("zigzag-ring", "Each row on two processes: keys and values travel a ring", "zigzag-ring"),
]


def documents():
    """The longest bodies of documentation in the standard library: (module, all its docstrings)."""
    found = []
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        parts = [(getattr(n, "name", path.stem), ast.get_docstring(n)) for n in nodes]
        found.append((path.stem, "\n\n".join(f"{name}: {doc}" for name, doc in parts if doc)))
    found.sort(key=lambda item: -len(item[1]))
    return found[:NUM_DOCUMENTS]


def run(*command):
    """Shows a command as one would type it, runs it, returns the seconds it took."""
    print(f"\n$ {shlex.join(['longspan', *command])}", flush=True)
    start = time.time()
    result = subprocess.run([LONGSPAN, *command])
    if result.returncode != 0:
        sys.exit(f"demo: that command failed with status {result.returncode}")
    return time.time() - start


def write_data():
    texts = documents()
    data = OUTPUT / "data"
    data.mkdir(parents=True)
    rows = [{"instruction": f"Document Python's module {name}.", "output": text} for name, text in texts]
    (data / "python_docs.json").write_text(json.dumps(rows, indent=1))
    (data / "dataset_info.json").write_text(
        json.dumps({"python_docs": {"file_name": "python_docs.json"}}, indent=2)
    )
    corpus = OUTPUT / "corpus.txt"
    corpus.write_text("\n\n".join(text for _, text in texts))
    print(f"{len(rows)} documents, {sum(len(t) for _, t in texts):,} characters, from Python's standard library")
    return corpus


def main():
    start = time.time()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    corpus = write_data()
    (OUTPUT / "config.json").write_text(json.dumps(MODEL, indent=2))
    run("tokenizer", "--files", str(corpus), "--vocab-size", str(VOCAB_SIZE), "--output", str(OUTPUT / "tokenizer"))
    run("init", "--config", str(OUTPUT / "config.json"), "--tokenizer", str(OUTPUT / "tokenizer"),
        "--output", str(OUTPUT / "model"), "--seed", "42")

    seconds = {}
    for name, title, mode in RUNS:
        parallel = f"\nnproc_per_node: 2\nsequence_parallel_size: 2\nsequence_parallel_mode: {mode}\n" if mode else ""
        config = OUTPUT / f"{name}.yaml"
        config.write_text(TRAINING.format(title=title, output=OUTPUT, name=name, parallel=parallel))
        seconds[name] = run("train", str(config))

    picture = OUTPUT / "loss_curves.png"
    run("compare", "--runs", *(str(OUTPUT / name) for name, _, _ in RUNS), "--output", str(picture))
    times = ", ".join(f"{name} {s:.0f} s" for name, s in seconds.items())
    print(f"""
Done in {time.time() - start:.0f} s ({times}).
The picture: {picture}

What to type next:
  {os.path.relpath(LONGSPAN) if os.sep in LONGSPAN else LONGSPAN} train {OUTPUT}/ulysses.yaml cutoff_len=4096   # longer rows
  less {OUTPUT}/ulysses.yaml                                 # a config to start your own from
  {os.path.relpath(LONGSPAN) if os.sep in LONGSPAN else LONGSPAN} help train                                  # every key""")


if __name__ == "__main__":
    main()
