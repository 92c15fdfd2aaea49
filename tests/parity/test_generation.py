"""`longspan generate` and `longspan chat` against transformers' generate() on random checkpoints."""

import json
import os
import subprocess

import pytest
import torch
from conftest import PROGRAM, write_model
from model_configs import longrope
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
    "qwen3-moe": ("qwen3_moe", {}),
    "glm4-moe": ("glm4_moe", {}),
    "qwen3_5": ("qwen3_5", {}),
    "qwen3-next": ("qwen3_next", {}),
    "qwen3_5-moe": ("qwen3_5_moe", {}),
    "gpt-oss": ("gpt_oss", {}),
    "llama-untied-llama3-rope": ("llama", {}),
    "llama-tied-yarn": ("llama", dict(tie_word_embeddings=True, rope_scaling=YARN)),
    "mistral-window": ("mistral", {}),
    "gemma3": ("gemma3", {}),
    "phi3": ("phi3", {}),
    # Some answers begin as short rows and end as long ones.
    "phi3-longrope": ("phi3", dict(original_max_position_embeddings=48, rope_parameters=longrope())),
    "glm4": ("glm4", {}),
    "deepseek-v3": ("deepseek_v3", {}),
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


def answer_of(model, tokenizer, question, **options):
    """The tokens of transformers' answer."""
    ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)["input_ids"]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, **options)
    return out[0, ids.shape[1]:]


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
        tokens = answer_of(model, tokenizer, question, do_sample=False)
        assert row["predict"] == text_of(tokenizer, tokens), question
        assert row["finish_reason"] == ("stop" if tokens[-1] == tokenizer.eos_token_id else "length")
        lengths.append(len(tokens))
    assert sum(length == NEW_TOKENS for length in lengths) >= 3


def write_words_tokenizer(folder, vocab_size):
    """Token i is a word of its own, so that an answer's text tells its tokens. Returns their numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    numbers = {"<pad>": 0, "<end>": 1} | {f"w{i}": i for i in range(2, vocab_size)}
    words = Tokenizer(models.WordLevel(numbers, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<pad>", unk_token="<pad>")
    fast.chat_template = "w3 {{ messages[0].content }} w4"
    fast.save_pretrained(folder)
    return numbers


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen3", "llama-untied-llama3-rope"])
def test_greedy_in_bf16(tmp_path, name):
    """Every token in bf16 is the likeliest, as far as rounding can tell.

    Transformers' logits in bf16 are off from those in fp32 (of the same weights) by `noise`, a standard deviation; so are
    ours. The token that we take for the likeliest is then behind by the difference of two errors, sqrt(2) noise, and of
    some thousand close calls the worst by 4.5 of that. Tokens at random are behind by the spread of the logits.
    """
    folder = tmp_path / "model"
    write_model(folder, MODELS[name][0], dtype="bfloat16", initializer_range=0.1)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    numbers = write_words_tokenizer(folder, vocab_size)
    prompts = [[3, *torch.randint(5, vocab_size, (n,), generator=torch.Generator().manual_seed(n)).tolist(), 4]
               for n in (1, 7, 30, 90, 2)]
    file = tmp_path / "prompts.txt"
    file.write_text("".join(" ".join(f"w{i}" for i in ids[1:-1]) + "\n" for ids in prompts))
    ran = longspan("generate", file, folder, f"max_new_tokens={NEW_TOKENS}", "batch_size=3", "temperature=0",
                   "skip_special_tokens=false")
    assert "in bf16" in ran.stderr
    answers = [[numbers[word] for word in json.loads(line)["predict"].split()] for line in ran.stdout.splitlines()]
    rounded = AutoModelForCausalLM.from_pretrained(folder)
    assert rounded.dtype == torch.bfloat16
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    count = equal = 0
    for prompt, answer in zip(prompts, answers):
        row = torch.tensor([prompt + answer])[:, :-1]
        with torch.no_grad():
            logits, theirs = (model(row).logits[0, -len(answer):].float() for model in (exact, rounded))
        noise = (theirs - logits).std()
        behind = logits.max(-1).values - logits[torch.arange(len(answer)), torch.tensor(answer)]
        assert behind.max() < 4.5 * 2**0.5 * noise, (behind.max() / noise, logits.std() / noise)
        assert logits.std() > 20 * noise
        count, equal = count + len(answer), equal + (behind == 0).sum().item()
    assert count > 150 and equal > 0.8 * count, (count, equal)


def test_penalty(folders, tmp_path):
    folder = folders["qwen3"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = generate(folder, tmp_path, "repetition_penalty=1.3", "do_sample=false")
    for question, row in zip(QUESTIONS, rows):
        tokens = answer_of(model, tokenizer, question, do_sample=False, repetition_penalty=1.3)
        assert row["predict"] == text_of(tokenizer, tokens), question


def test_settings_of_the_model(folders, tmp_path):
    """generation_config.json says how and where answers end; a key says otherwise."""
    folder = tmp_path / "model"
    write_model(folder, "qwen2", initializer_range=0.1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokens = answer_of(model, tokenizer, QUESTIONS[0], do_sample=False)
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
        tokens = answer_of(loaded, tokenizer, question, do_sample=False)
        assert row["predict"] == text_of(tokenizer, tokens), question
        assert row["predict"] != other["predict"]
