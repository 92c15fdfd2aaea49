"""Memory of a run that streams a file of texts (streaming: true), from its first to its last row. README.md in this folder
says what is measured and how."""

import argparse
import json
import os
import pathlib
import subprocess
import time

from data_speed import memory, write_rows

ROOT = pathlib.Path(__file__).resolve().parents[1]
BATCH, CUT = 64, 16  # rows of a step, tokens of a row


def write_model(folder):
    """A token a line of text, so that reading outweighs tokenizing and training; the smallest model."""
    import tokenizers
    import torch
    import transformers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<|endoftext|>": 0, "<unk>": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("\n", "removed")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>",
                                         unk_token="<unk>").save_pretrained(folder)
    config = transformers.Qwen2Config(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                      num_attention_heads=1, num_key_value_heads=1)
    transformers.Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=5000, help="of the file (default 5000)")
    parser.add_argument("--ranks", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench" / "stream")
    parser.add_argument("--longspan", default=os.environ.get("LONGSPAN", str(ROOT / "build" / "longspan")))
    options = parser.parse_args()
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / f"rows-{options.megabytes}.jsonl"
    if not rows.exists():
        write_rows(rows, options.megabytes * 1_000_000)
    write_model(folder / "model")
    with open(rows, "rb") as file:
        count = sum(1 for _ in file)
    steps = count // BATCH
    keys = {"model_name_or_path": str(folder / "model"), "stage": "pt", "do_train": True, "dataset": str(rows),
            "streaming": True, "buffer_size": 10000, "cutoff_len": CUT, "packing": False, "template": "empty",
            "output_dir": str(folder / "output"), "overwrite_output_dir": True, "max_steps": steps,
            "logging_steps": max(1, steps // 20), "save_strategy": "no", "device": "cpu", "warmup_steps": 0,
            "per_device_train_batch_size": BATCH // options.ranks, "nproc_per_node": options.ranks}
    (folder / "stream.yaml").write_text(json.dumps(keys))
    start = time.monotonic()
    with open(folder / "stream.log", "w") as log:
        process = subprocess.Popen([options.longspan, "train", str(folder / "stream.yaml")], stdout=log, stderr=log)
    peak = dict.fromkeys(range(10), 0)
    curve = folder / "output" / "trainer_log.jsonl"
    while process.poll() is None:
        lines = curve.read_text().splitlines() if curve.exists() else []
        done = json.loads(lines[-1]).get("current_steps", 0) if lines else 0
        tenth = min(9, done * 10 // steps)
        peak[tenth] = max(peak[tenth], memory(process.pid, "Pss_Anon"))
        time.sleep(0.5)
    assert process.returncode == 0, (folder / "stream.log").read_text()[-2000:]
    print(f"{rows.stat().st_size / 1e6:.0f} MB, {count} rows, {options.ranks} ranks, {time.monotonic() - start:.0f} s")
    print("MB without pages of files, by tenths of the stream: " + ", ".join(f"{one / 1e6:.0f}" for one in peak.values()))


if __name__ == "__main__":
    main()
