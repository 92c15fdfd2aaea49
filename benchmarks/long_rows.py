"""How the time from a file to a row grows with the row: rows of 0.25 to 2 million tokens, encoded by `longspan data`.
README.md in this folder says what is measured and how."""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import data_speed  # noqa: E402

VOCAB = 4096
data_speed.SAMPLE = 2_000_000  # bytes that train the tokenizer
TURN = 400  # bytes of a message
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# As that of models that drop earlier thoughts: the last question is found first.
LOOKS_BACK = ("{% set ns = namespace(last=0) %}{% for message in messages %}{% if message.role == 'user' %}"
              "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for message in messages %}"
              "{{ '<|im_start|>' + message.role + '\n' }}{% if message.role == 'assistant' and loop.index0 > ns.last %}"
              "{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ message.content + '<|im_end|>\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def text_of(num_bytes):
    parts, size = [], 0
    for text in data_speed.texts():
        parts.append(text)
        size += len(text)
        if size >= num_bytes:
            return "".join(parts)[:num_bytes]


def chat_of(text, turn, called=False):
    """Messages of `turn` characters, in turn of the user and the assistant. `called`: calls of a tool and its results."""
    messages = []
    for i, begin in enumerate(range(0, len(text), turn)):
        part = text[begin:begin + turn]
        if called and i > 0:
            call = dict(function=dict(name="look", arguments=dict(at=part[:turn // 2])))
            messages.append(dict(role="assistant", content="", tool_calls=[call]) if i % 2 == 1 else dict(role="tool", content=part))
        else:
            messages.append(dict(role="user" if i % 2 == 0 else "assistant", content=part))
    if messages[-1]["role"] == "assistant" and called:
        messages.append(dict(role="tool", content="Found."))
    if messages[-1]["role"] != "assistant":
        messages.append(dict(role="assistant", content="The end."))
    return dict(messages=messages)


# By case: the row of a text, and the keys of the run.
CASES = {
    "one text (pt)": (lambda text: dict(text=text), dict(stage="pt", packing=False, template="empty")),
    "one text, packed (pt)": (lambda text: dict(text=text), dict(stage="pt", packing=True, template="empty", cutoff_len=65536)),
    "one question (named template)": (lambda text: chat_of(text, len(text)), dict(template="chatml")),
    "one question (own template)": (lambda text: chat_of(text, len(text)), dict(own=CHATML)),
    "many turns (named template)": (lambda text: chat_of(text, TURN), dict(template="chatml")),
    "many turns, the last one trained": (lambda text: chat_of(text, TURN), dict(template="chatml", mask_history=True)),
    "many turns (own template)": (lambda text: chat_of(text, TURN), dict(own=CHATML)),
    "many turns, packed (own template)": (lambda text: chat_of(text, TURN), dict(own=CHATML, neat_packing=True)),
    "many turns (looks back)": (lambda text: chat_of(text, TURN), dict(own=LOOKS_BACK)),
    "many calls (own template)": (lambda text: chat_of(text, TURN, called=True), dict(own=CHATML.replace(
        "message.content +", "message.content + (message.tool_calls | tojson if message.tool_calls else '') +"))),
    # A step on a short row, and the long row encoded beside it and kept.
    "many turns, kept rows (own template)": (lambda text: chat_of(text, TURN), dict(own=CHATML, kept=True)),
}


def run(options, case, num_tokens, bytes_per_token):
    """Tokens of the row, and processor seconds of the program."""
    make, keys = CASES[case]
    folder = options.out / re.sub(r"\W+", "-", case)
    folder.mkdir(parents=True, exist_ok=True)
    keys = dict(keys)
    model = folder / "model"
    if not model.exists():
        shutil.copytree(options.out / "model", model)
        if "own" in keys:
            (model / "chat_template.jinja").write_text(keys["own"])
    own = keys.pop("own", None)
    rows = folder / f"rows-{num_tokens}.jsonl"
    kept, command = keys.pop("kept", False), ["data", str(folder / "data.yaml"), "--html", str(folder / "data.html")]
    lines = [chat_of("What? That.", 5)] * kept + [make(text_of(int(num_tokens * bytes_per_token)))]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = dict(model_name_or_path=str(model), stage="sft", dataset=str(rows), cutoff_len=8 * num_tokens,
                    preprocessing_num_workers=1, output_dir=str(folder / "output"), do_train=True) | keys
    assert own is None or "template" not in settings
    if kept:
        command = ["train", str(folder / "data.yaml")]
        shutil.rmtree(folder / "kept", ignore_errors=True)
        settings |= dict(tokenized_path=str(folder / "kept"), overwrite_output_dir=True, max_steps=1, disable_shuffling=True,
                         save_strategy="no", save_only_model=True, device="cpu", per_device_train_batch_size=1,
                         gradient_accumulation_steps=1, logging_steps=1)
    (folder / "data.yaml").write_text(json.dumps(settings))
    before = os.times()
    done = subprocess.run([options.longspan, *command], capture_output=True, text=True, timeout=options.timeout)
    after = os.times()
    if done.returncode != 0:
        sys.exit(f"{case}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    found = re.search(r"^\S*rows\S* +\S+ +(\S+)", done.stdout, re.M)
    tokens = int(found[1].replace(",", "")) if found else (folder / "kept" / "rows.longspan").stat().st_size // 8
    return tokens, after.children_user - before.children_user + after.children_system - before.children_system


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=lambda text: [int(float(one) * 2**20) for one in text.split(",")],
                        default=[2**18, 2**19, 2**20], help="of the row, in units of 2^20 (default 0.25,0.5,1)")
    parser.add_argument("--only", help="cases whose name has this text")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench" / "long_rows")
    parser.add_argument("--longspan", default=os.environ.get("LONGSPAN", str(ROOT / "build" / "longspan")))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "model").exists():
        data_speed.write_model(options.out / "model", VOCAB, ["<|im_start|>", "<|im_end|>"])
    for case in CASES:
        if options.only and options.only not in case:
            continue
        cells, times = [], []
        for num_tokens in options.tokens:
            tokens, seconds = run(options, case, num_tokens, bytes_per_token=3)
            times.append((tokens, seconds))
            cells.append(f"{tokens / 2**20:5.2f}M {seconds:6.2f} s")
        # Seconds for the tokens that the larger row has more, over those for as many tokens of the smaller one.
        growth = [(b[1] - a[1]) / (b[0] - a[0]) * 2**20 for a, b in zip(times, times[1:])]
        print(f"{case:37} {'  '.join(cells)}   each further 2^20 tokens: " + ", ".join(f"{one:.2f} s" for one in growth), flush=True)


if __name__ == "__main__":
    main()
