"""The demo: one model trained on long rows three times - without sequence parallelism, with Ulysses on two
processes, with a zigzag ring on two processes - and the three loss curves in one picture. Then DPO from there, on one
process and on two, in a second picture.

The experiments are those by which sequence parallelism is usually shown to be correct (30 long documents, full-parameter
training, accumulation 8, P = 1 against P = 2), at laptop scale. The text is the documentation inside Python's own
standard library; nothing is downloaded. Everything goes through the `longspan` command.
"""

import ast
import json
import os
import pathlib
import random
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
    "initializer_range": 0.05,  # by 0.02, as in models ten times as wide, norms of gradients jump at the learning rate below
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "torch_dtype": "float32",
}

TRAINING = """\
# {title}
model_name_or_path: {output}/model
device: cpu                                  # in fp32, also where there is a GPU
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
num_train_epochs: 3
lr_scheduler_type: cosine
warmup_ratio: 0.1
seed: 42
{parallel}"""

PREFERENCES = """\
# {title}
model_name_or_path: {output}/sp1          # what the first part has trained
device: cpu
stage: dpo
pref_loss: sigmoid
pref_beta: 0.1
do_train: true
finetuning_type: full

dataset: python_pairs
dataset_dir: {output}/data
template: chatml
cutoff_len: 1024

output_dir: {output}/{name}
overwrite_output_dir: true
logging_steps: 1
save_strategy: "no"
plot_loss: true

per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 5.0e-5
num_train_epochs: 2
lr_scheduler_type: cosine
warmup_ratio: 0.1
seed: 42
{parallel}"""

RUNS = [
    ("sp1", "One process holds whole rows", ""),
    ("ulysses", "Each row on two processes: heads are exchanged", "ulysses"),
    ("zigzag-ring", "Each row on two processes: keys and values travel a ring", "zigzag-ring"),
]

PREFERENCE_RUNS = [
    ("dpo-sp1", "Pairs of answers on one process", ""),
    ("dpo-zigzag-ring", "Each pair on two processes", "zigzag-ring"),
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
    # The documentation as it is against the same lines in a random order.
    rng, pairs = random.Random(42), []
    for row in rows:
        lines = row["output"].splitlines()
        rng.shuffle(lines)
        pairs.append({"instruction": row["instruction"], "chosen": row["output"], "rejected": "\n".join(lines)})
    (data / "python_pairs.json").write_text(json.dumps(pairs, indent=1))
    (data / "dataset_info.json").write_text(json.dumps({
        "python_docs": {"file_name": "python_docs.json"},
        "python_pairs": {"file_name": "python_pairs.json", "ranking": True,
                         "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}},
    }, indent=2))
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

    seconds, pictures = {}, []
    for runs, template, picture in [(RUNS, TRAINING, "loss_curves.png"),
                                    (PREFERENCE_RUNS, PREFERENCES, "dpo_loss_curves.png")]:
        for name, title, mode in runs:
            parallel = ""
            if mode:
                parallel = f"\nnproc_per_node: 2\nsequence_parallel_size: 2\nsequence_parallel_mode: {mode}\n"
            config = OUTPUT / f"{name}.yaml"
            config.write_text(template.format(title=title, output=OUTPUT, name=name, parallel=parallel))
            seconds[name] = run("train", str(config))
            if len(seconds) == 1:
                print(f"\nThe first loss curve, after {time.time() - start:.0f} s: {OUTPUT / name}/training_loss.png", flush=True)
        pictures.append(OUTPUT / picture)
        run("compare", "--runs", *(str(OUTPUT / name) for name, _, _ in runs), "--output", str(pictures[-1]))

    times = ", ".join(f"{name} {s:.0f} s" for name, s in seconds.items())
    print(f"""
Done in {time.time() - start:.0f} s ({times}).
The pictures: {", ".join(map(str, pictures))}

What to type next:
  {os.path.relpath(LONGSPAN) if os.sep in LONGSPAN else LONGSPAN} train {OUTPUT}/ulysses.yaml cutoff_len=4096   # longer rows
  {os.path.relpath(LONGSPAN) if os.sep in LONGSPAN else LONGSPAN} chat {OUTPUT}/ulysses                         # talk to what came out
  less {OUTPUT}/ulysses.yaml {OUTPUT}/dpo-sp1.yaml          # configs to start your own from
  {os.path.relpath(LONGSPAN) if os.sep in LONGSPAN else LONGSPAN} help train                                  # every key""")


if __name__ == "__main__":
    main()
