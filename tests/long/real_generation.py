"""Greedy answers of a real trained model beside transformers': `longspan generate` must give the same 50 tokens.

    python tests/long/real_generation.py FOLDER     a Hugging Face folder, such as that of SmolLM2-135M-Instruct

Also prints the processor time a token of both, one answer at a time; that is not checked."""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = pathlib.Path(os.environ.get("LONGSPAN_BUILD", ROOT / "build")) / "longspan"
NEW_TOKENS = 50
QUESTIONS = [
    "Why is the sky blue?",
    "Write a haiku about rivers.",
    "Give me three tips for staying healthy, please, and explain each of them in one sentence.",
    "Translate to French: The weather is nice today.",
    "def fibonacci(n):",
    "List the planets of the solar system in order, and say one thing about each.",
]


def longspan(*arguments, question=""):
    ran = subprocess.run([PROGRAM, *map(str, arguments), "temperature=0"], input=question, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def seconds_of_children(work):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    folder = sys.argv[1]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def theirs(question, count):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                            return_tensors="pt", return_dict=True)["input_ids"]
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
        return out[0, ids.shape[1]:]

    with tempfile.TemporaryDirectory() as place:
        file = pathlib.Path(place) / "questions.jsonl"
        file.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in QUESTIONS))
        lines = longspan("generate", file, folder, f"max_new_tokens={NEW_TOKENS}", "infer_dtype=fp32").splitlines()
    different = 0
    for question, line in zip(QUESTIONS, lines, strict=True):
        tokens = theirs(question, NEW_TOKENS)
        same = json.loads(line)["predict"] == tokenizer.decode(tokens, skip_special_tokens=True)
        different += not same
        print(f"{'same' if same else 'DIFFERENT'}: {len(tokens)} tokens: {question}", flush=True)

    question = QUESTIONS[-1]
    ours = [seconds_of_children(lambda: longspan("chat", folder, f"max_new_tokens={count}", "infer_dtype=fp32", question=question))
            for count in (1, NEW_TOKENS)]
    other = []
    for count in (1, NEW_TOKENS):
        begin = time.process_time()
        theirs(question, count)
        other.append(time.process_time() - begin)
    ours, other = ((whole - first) / (NEW_TOKENS - 1) * 1000 for first, whole in (ours, other))
    print(f"processor time a token: longspan {ours:.1f} ms, transformers {other:.1f} ms")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
