"""From a file of texts to packed rows: Longspan beside Hugging Face datasets and tokenizers, in turns. README.md in this
folder says what is measured and how."""

import argparse
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import sysconfig
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROW = 2048  # tokens
SAMPLE = 20_000_000  # bytes of text that train the tokenizer
DOCUMENT = 8_000  # characters, at most
SAVED, LOSS = "The encoded rows are ", "'loss'"

PEER = """
import itertools, sys
import datasets, transformers
rows, model, cache, workers, length = sys.argv[1:6]
datasets.disable_progress_bars()
tokenizer = transformers.AutoTokenizer.from_pretrained(model)
def pack(batch):
    texts = [text + tokenizer.eos_token for text in batch["text"]]
    ids = list(itertools.chain(*tokenizer(texts, add_special_tokens=False)["input_ids"]))
    whole = len(ids) // int(length) * int(length)
    return {"input_ids": [ids[begin:begin + int(length)] for begin in range(0, whole, int(length))]}
data = datasets.load_dataset("json", data_files=rows, split="train", cache_dir=cache)
data = data.map(pack, batched=True, num_proc=int(workers), remove_columns=data.column_names)
print("rows", len(data), flush=True)
"""


def texts():
    """The Python files of this environment, in pieces, again and again."""
    files = sorted(pathlib.Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))
    for turn in itertools.count():
        for file in files:
            text = file.read_text(errors="ignore")
            for begin in range(0, len(text), DOCUMENT):
                # No two turns have the same texts.
                yield f"# {turn}\n{text[begin:begin + DOCUMENT]}"


def write_rows(path, num_bytes):
    written = 0
    with open(path, "w") as rows:
        for text in texts():
            if written >= num_bytes:
                return
            written += rows.write(json.dumps({"text": text}) + "\n")


def write_model(folder, vocab_size, special_tokens=()):
    """A tokenizer of real texts, and the smallest model."""
    import tokenizers
    import torch
    import transformers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    sample, size = [], 0
    for text in itertools.islice(texts(), 0, None, 7):
        sample.append(text)
        size += len(text)
        if size > SAMPLE:
            break
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=["<|endoftext|>", *special_tokens],
                                            show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(sample, trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    config = transformers.Qwen2Config(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=32,
                                      num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    transformers.Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)


def tree(pid):
    """The process and its descendants."""
    pids = [pid]
    for one in pids:
        for children in pathlib.Path(f"/proc/{one}/task").glob("*/children"):
            try:
                pids += [int(child) for child in children.read_text().split()]
            except OSError:
                pass
    return pids


def memory(pid, kind):
    """Bytes of all processes; pages that several have count once. `kind`: Pss, or Pss_Anon without files."""
    total = 0
    for one in tree(pid):
        try:
            for line in pathlib.Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith(kind + ":"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            pass
    return total


def processor_seconds(pid):
    """Processor seconds of all processes, ended ones included."""
    total = 0
    for one in tree(pid):
        try:
            fields = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(int(field) for field in fields[11:15])
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


def watched(command, log, until, environment=None):
    """Seconds from the start to each of the words; the peaks of memory and the processor time until the first of them."""
    with open(log, "w") as output:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | (environment or {}))
    peaks, ended = {"Pss": 0, "Pss_Anon": 0, "processor": 0}, threading.Event()

    def watch():
        while not ended.wait(0.1):
            for kind in peaks:
                now = processor_seconds(process.pid) if kind == "processor" else memory(process.pid, kind)
                peaks[kind] = max(peaks[kind], now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    seconds = {}
    while len(seconds) < len(until):
        is_running = process.poll() is None
        text = pathlib.Path(log).read_text()
        for word in until:
            if word in text and word not in seconds:
                seconds[word] = time.monotonic() - start
                ended.set()
        if not is_running and len(seconds) < len(until):
            ended.set()
            sys.exit(f"{command[0]} ended early:\n{text[-2000:]}")
        time.sleep(0.02)
    watcher.join()
    process.wait()
    return seconds, peaks


def run_longspan(options, folder, rows, kept, word):
    keys = {"model_name_or_path": str(folder / "model"), "stage": "pt", "do_train": True, "dataset": str(rows),
            "cutoff_len": ROW, "output_dir": str(folder / "output"), "overwrite_output_dir": True, "max_steps": 1,
            "logging_steps": 1, "save_strategy": "no", "save_only_model": True, "tokenized_path": str(kept),
            "cache_dir": str(folder / "temporary"), "preprocessing_num_workers": options.workers, "device": "cpu",
            "template": "empty", "per_device_train_batch_size": 1}
    (folder / "longspan.yaml").write_text(json.dumps(keys))
    return watched([options.longspan, "train", str(folder / "longspan.yaml")], folder / "longspan.log", word)


def run_peer(options, folder, rows):
    shutil.rmtree(folder / "datasets", ignore_errors=True)
    command = [sys.executable, "-c", PEER, str(rows), str(folder / "model"), str(folder / "datasets"), str(options.workers),
               str(ROW)]
    # Each process has one thread.
    return watched(command, folder / "peer.log", ["rows "], {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"})


def num_rows(log, word):
    return int(pathlib.Path(log).read_text().split(word)[1].split()[0].replace(",", ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="of the file (default 100)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (default 2)")
    parser.add_argument("--workers", type=int, default=2, help="threads of Longspan, processes of datasets (default 2)")
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench" / "data")
    parser.add_argument("--longspan", default=os.environ.get("LONGSPAN", str(ROOT / "build" / "longspan")))
    options = parser.parse_args()
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / f"rows-{options.megabytes}.jsonl"
    if not rows.exists():
        write_rows(rows, options.megabytes * 1_000_000)
    if not (folder / "model").exists():
        write_model(folder / "model", options.vocab)
    times, peaks = {"longspan": [], "peer": []}, {"longspan": [], "peer": []}
    firsts = {"cold": [], "warm": []}
    for _ in range(options.rounds):
        kept = folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        seconds, peak = run_longspan(options, folder, rows, kept, [SAVED, LOSS])
        times["longspan"].append(seconds[SAVED])
        peaks["longspan"].append(peak)
        firsts["cold"].append(seconds[LOSS])
        made = num_rows(folder / "longspan.log", "Packing: ")
        firsts["warm"].append(run_longspan(options, folder, rows, kept, [LOSS])[0][LOSS])
        seconds, peak = run_peer(options, folder, rows)
        times["peer"].append(seconds["rows "])
        peaks["peer"].append(peak)
        others = num_rows(folder / "peer.log", "rows ")
        # datasets drops the incomplete last row of each 1000 texts.
        assert abs(made - others) <= made / 50, (made, others)
    tokens = {"longspan": made * ROW, "peer": others * ROW}
    rates = {name: tokens[name] / statistics.median(times[name]) for name in times}
    busy = {name: tokens[name] / statistics.median(peak["processor"] for peak in peaks[name]) for name in times}
    most = {name: {kind: max(peak[kind] for peak in peaks[name]) for kind in ("Pss", "Pss_Anon")} for name in times}
    print(f"{rows.stat().st_size / 1e6:.0f} MB, {options.workers} threads or processes, {made} rows of {ROW} tokens")
    for name in times:
        print(f"{name}: {rates[name]:,.0f} tokens/s ({', '.join(f'{one:.1f}' for one in times[name])} s), {busy[name]:,.0f} "
              f"tokens per second of processor time, peak memory {most[name]['Pss'] / 1e6:.0f} MB, without pages of files "
              f"{most[name]['Pss_Anon'] / 1e6:.0f} MB")
    ratios = [of["longspan"] / of["peer"] for of in (rates, busy)]
    ratios += [most["longspan"][kind] / most["peer"][kind] for kind in ("Pss", "Pss_Anon")]
    print("ratios: speed {:.2f}x, by processor time {:.2f}x, peak memory {:.2f}x, without pages of files {:.2f}x".format(*ratios))
    print(f"first step: cold {statistics.median(firsts['cold']):.1f} s, warm {statistics.median(firsts['warm']):.1f} s")


if __name__ == "__main__":
    main()
