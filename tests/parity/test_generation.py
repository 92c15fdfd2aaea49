"""`longspan generate` and `longspan chat` against transformers' generate() on random checkpoints."""

import json
import os
import subprocess

import pytest
import torch
from conftest import PROGRAM, write_model
from transformers import AutoModelForCausalLM, AutoTokenizer

NEW_TOKENS = 50
QUESTIONS = [
    "random integer",
    "What does a generator of uniform numbers return, and how is its state kept?",
    "a " * 90,  # longer than the others, so that documents of a row differ
    "Seed",
    "weights population choices cumulative",
]
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
MODELS = {
    "qwen2-tied": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "llama-untied-llama3-rope": ("llama", {}),
    "llama-tied-yarn": ("llama", dict(tie_word_embeddings=True, rope_scaling=YARN)),
    "llama-linear-rope": ("llama", dict(rope_scaling=dict(rope_type="linear", factor=2.0))),
}


def longspan(*arguments, status=0, stdin=""):
    ran = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, input=stdin,
                         env=dict(os.environ, OMP_NUM_THREADS="1"), timeout=120)
    assert ran.returncode == status, ran.stderr
    return ran


def generate(folder, tmp_path, *keys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in QUESTIONS))
    ran = longspan("generate", prompts, folder, f"max_new_tokens={NEW_TOKENS}", "batch_size=3", "skip_special_tokens=false",
                   *keys)
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["prompt"] for row in rows] == QUESTIONS
    return rows


def reference(model, tokenizer, question, **options):
    """transformers' answer, its tokens and the logits that each was taken from."""
    ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)["input_ids"]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, return_dict_in_generate=True,
                         output_logits=True, **options)
    return ids, out.sequences[0, ids.shape[1]:], torch.stack(out.logits)[:, 0].float()


def text_of(tokenizer, tokens):
    """Without the token that ends the answer."""
    tokens = tokens.tolist()
    return tokenizer.decode(tokens[:-1] if tokens[-1] == tokenizer.eos_token_id else tokens)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write_model(tmp_path_factory.mktemp(name), kind, initializer_range=0.1, **keys)
            for name, (kind, keys) in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_greedy(folders, tmp_path, name):
    """Greedy answers to prompts of different lengths, several at a time, are transformers'."""
    folder = folders[name]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = generate(folder, tmp_path, "temperature=0")
    lengths = []
    for question, row in zip(QUESTIONS, rows):
        _, tokens, _ = reference(model, tokenizer, question, do_sample=False)
        assert row["predict"] == text_of(tokenizer, tokens), question
        assert row["finish_reason"] == ("stop" if tokens[-1] == tokenizer.eos_token_id else "length")
        lengths.append(len(tokens))
    assert sum(length == NEW_TOKENS for length in lengths) >= 3


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen3", "llama-untied-llama3-rope"])
def test_greedy_in_bf16(folders, tmp_path, name):
    """In bf16 the same, until two tokens are as likely as rounding can tell.

    Each logit of transformers' own run in bf16 is off from that in fp32 (the same weights) by some `noise`; ours is off
    as much. Two tokens whose logits lie further apart than the sum of both errors, twice each, cannot change places.
    """
    folder = tmp_path / "model"
    write_model(folder, MODELS[name][0], dtype="bfloat16", initializer_range=0.1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    compared = 0
    for question, row in zip(QUESTIONS, generate(folder, tmp_path, "temperature=0")):
        ids, tokens, logits = reference(model, tokenizer, question, do_sample=False)
        whole = torch.cat([ids[0], tokens])[None, :-1]
        with torch.no_grad():
            noise = (exact(whole).logits[0, -len(tokens):] - logits).abs().max()
        best = logits.topk(2).values
        close = (best[:, 0] - best[:, 1] <= 4 * noise).nonzero()[:, 0].tolist()
        sure = close[0] if close else len(tokens)
        assert row["predict"].startswith(text_of(tokenizer, tokens[:sure])) if sure else True, question
        compared += sure
    # Of 250 tokens; ties are a share of them.
    assert compared >= 40, compared


def test_penalty(folders, tmp_path):
    folder = folders["qwen3"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = generate(folder, tmp_path, "repetition_penalty=1.3", "do_sample=false")
    for question, row in zip(QUESTIONS, rows):
        _, tokens, _ = reference(model, tokenizer, question, do_sample=False, repetition_penalty=1.3)
        assert row["predict"] == text_of(tokenizer, tokens), question


def test_settings_of_the_model(folders, tmp_path):
    """generation_config.json says how and where answers end; a key says otherwise."""
    folder = tmp_path / "model"
    write_model(folder, "qwen2", initializer_range=0.1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    _, tokens, _ = reference(model, tokenizer, QUESTIONS[0], do_sample=False)
    end = tokens[7].item()
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= {"eos_token_id": [tokenizer.eos_token_id, end], "do_sample": True, "temperature": 0.01, "top_k": 1}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    row = generate(folder, tmp_path)[0]
    first = tokens.tolist().index(end)
    assert row["predict"] == tokenizer.decode(tokens[:first]) and row["finish_reason"] == "stop"
    asked = longspan("chat", folder, "temperature=0", "max_new_tokens=3", "skip_special_tokens=false", stdin=QUESTIONS[0])
    assert asked.stdout == tokenizer.decode(tokens[:min(first, 3)]) + "\n"
    drawn = [generate(folder, tmp_path, "temperature=2", "top_k=0", f"seed={seed}") for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_adapter(folders, tmp_path):
    """The folder of an adapter answers as PEFT does with it."""
    from peft import LoraConfig, PeftModel, get_peft_model

    base, folder = folders["llama-tied-yarn"], tmp_path / "adapter"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    torch.manual_seed(3)
    peft = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"],
                                            init_lora_weights=False))
    peft.save_pretrained(folder)
    rows = generate(folder, tmp_path, "temperature=0")
    assert rows == generate(base, tmp_path, f"adapter_name_or_path={folder}", "temperature=0")
    plain = generate(base, tmp_path, "temperature=0")
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    for question, row, other in zip(QUESTIONS, rows, plain):
        _, tokens, _ = reference(loaded, tokenizer, question, do_sample=False)
        assert row["predict"] == text_of(tokenizer, tokens), question
        assert row["predict"] != other["predict"]
