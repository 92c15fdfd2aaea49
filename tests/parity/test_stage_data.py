"""Rows of the stages beside sft, and packed ones, token for token: against TRL's own tokenization with
the model's chat template, against transformers' tokenizers with named templates (LLaMA-Factory's
rules, written down here once more)."""

import random
from types import SimpleNamespace

import pytest
import transformers
from test_data import IGNORE, TEXTS, conversations, cut_and_label, encode, named_turns, real, rendered_turns, shared_lengths
from test_text import fetch

NAMES = {"qwen2_5": "qwen", "llama3_2": "llama3"}
TAGS = dict(role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant", system_tag="system")
PAIRS = dict(
    ranking=True, formatting="sharegpt", tags=TAGS,
    columns=dict(messages="messages", chosen="chosen", rejected="rejected"),
)
VERDICTS = dict(formatting="sharegpt", tags=TAGS, columns=dict(messages="messages", kto_tag="label"))
PLAIN = [text for text in TEXTS if not text[0].isspace()]  # that tokenizers do not join with what is before


def pairs(answers=TEXTS):
    """Questions (several turns), two answers to each."""
    rng = random.Random(7)

    def answer():
        return {"role": "assistant", "content": rng.choice(answers)}

    return [{"messages": chat[:-1], "chosen": answer(), "rejected": answer()} for chat in conversations()]


def verdicts(answers=TEXTS):
    rng = random.Random(8)
    return [
        {"messages": chat[:-1] + [{"role": "assistant", "content": rng.choice(answers)}], "label": rng.random() < 0.5}
        for chat in conversations()
    ]


def documents(samples):
    return [[(document["input_ids"], document["labels"]) for document in sample["documents"]] for sample in samples]


def last_only(ids, labels):
    """Trains the last answer: the last run of labels."""
    begin = len(labels)
    while begin > 0 and labels[begin - 1] == IGNORE:
        begin -= 1
    while begin > 0 and labels[begin - 1] != IGNORE:
        begin -= 1
    return ids, [IGNORE] * begin + labels[begin:]


def trained_behind(prompt, answer):
    return prompt + answer, [IGNORE] * len(prompt) + answer


# The model's own chat template.


@pytest.mark.parametrize("stage", ["dpo", "rm"])
def test_pairs_by_the_models_template(real, tmp_path, stage):
    _, folder, tokenizer = real
    rows = pairs()
    expected = [
        [last_only(*rendered_turns(tokenizer, row["messages"] + [row[side]])) for side in ("chosen", "rejected")]
        for row in rows
    ]
    assert documents(encode(folder, tmp_path, rows, PAIRS, stage=stage)) == expected


def test_pairs_as_trl_has_them(real, tmp_path):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    _, folder, tokenizer = real
    rows = pairs(PLAIN)
    dataset = Dataset.from_list(
        [{"prompt": row["messages"], "chosen": [row["chosen"]], "rejected": [row["rejected"]]} for row in rows]
    )
    trainer = SimpleNamespace(_tokenizer=tokenizer)
    config = DPOConfig(output_dir=str(tmp_path), max_length=None, bf16=False)
    theirs = DPOTrainer._prepare_dataset(trainer, dataset, tokenizer, config, "train")
    expected = [
        [trained_behind(row["prompt_ids"], row[f"{side}_ids"]) for side in ("chosen", "rejected")] for row in theirs
    ]
    ours = documents(encode(folder, tmp_path, rows, PAIRS, stage="dpo"))
    assert len(ours) == len(rows) == len(expected)
    assert ours == expected


def test_verdicts_as_trl_has_them(real, tmp_path):
    """TRL with one batch over all rows."""
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    _, folder, tokenizer = real
    rows = verdicts(PLAIN)
    dataset = Dataset.from_list(
        [{"prompt": row["messages"][:-1], "completion": row["messages"][-1:], "label": row["label"]} for row in rows]
    )
    trainer = SimpleNamespace(_tokenizer=tokenizer, calculate_KL=True, desirable_weight=1.0, undesirable_weight=1.0)
    config = KTOConfig(output_dir=str(tmp_path), max_length=None, per_device_train_batch_size=len(rows), bf16=False)
    theirs = KTOTrainer._prepare_dataset(trainer, dataset, tokenizer, config, "train")
    expected = [
        [trained_behind(row["prompt_ids"], row[key]) for key in ("completion_ids", "KL_completion_ids")]
        for row in theirs
    ]
    samples = encode(folder, tmp_path, rows, VERDICTS, stage="kto")
    assert documents(samples) == expected
    assert [sample["desirable"] for sample in samples] == [row["label"] for row in theirs]


# Named templates.


def one_turn(tokenizer, name, chat):
    """Everything before the last answer, and that."""
    turns = named_turns(tokenizer, name, chat)
    prompt = [token for source, target in turns[:-1] for token in source + target]
    return prompt + turns[-1][0], turns[-1][1]


@pytest.mark.parametrize("cutoff_len", [1 << 20, 97, 40])
def test_pairs_by_named_templates(real, tmp_path, cutoff_len):
    tokenizer_name, folder, tokenizer = real
    name = NAMES[tokenizer_name]
    rows = pairs()
    expected = []
    for row in rows:
        prompt, chosen = one_turn(tokenizer, name, row["messages"] + [row["chosen"]])
        _, rejected = one_turn(tokenizer, name, row["messages"] + [row["rejected"]])
        source, target = shared_lengths(len(prompt), max(len(chosen), len(rejected)), cutoff_len)
        expected.append([trained_behind(prompt[:source], answer[:target]) for answer in (chosen, rejected)])
    samples = encode(folder, tmp_path, rows, PAIRS, stage="dpo", template=name, cutoff_len=cutoff_len)
    assert documents(samples) == expected
    assert "=== rejected ===" in samples[0]["description"]


@pytest.mark.parametrize("cutoff_len", [1 << 20, 97, 40])
def test_verdicts_by_named_templates(real, tmp_path, cutoff_len):
    tokenizer_name, folder, tokenizer = real
    name = NAMES[tokenizer_name]
    rows = verdicts()
    expected = []
    for row, before in zip(rows, rows[-1:] + rows[:-1]):
        example = []
        for answer in (row["messages"][-1], before["messages"][-1]):
            prompt, ids = one_turn(tokenizer, name, row["messages"][:-1] + [answer])
            source, target = shared_lengths(len(prompt), len(ids), cutoff_len)
            example.append(trained_behind(prompt[:source], ids[:target]))
        expected.append(example)
    samples = encode(folder, tmp_path, rows, VERDICTS, stage="kto", template=name, cutoff_len=cutoff_len)
    assert documents(samples) == expected


def test_alpaca_pairs_and_verdicts(real, tmp_path):
    """The same rows in the other format."""
    tokenizer_name, folder, _ = real
    name = NAMES[tokenizer_name]
    single = [row for row in pairs() if len(row["messages"]) == 1]
    flat = [
        {"q": row["messages"][0]["content"], "c": row["chosen"]["content"], "r": row["rejected"]["content"]}
        for row in single
    ]
    entry = dict(ranking=True, columns=dict(prompt="q", chosen="c", rejected="r"))
    assert single and encode(folder, tmp_path, flat, entry, stage="rm", template=name) == encode(
        folder, tmp_path, single, PAIRS, stage="rm", template=name
    )
    single = [row for row in verdicts() if len(row["messages"]) == 2]
    flat = [
        {"q": row["messages"][0]["content"], "a": row["messages"][1]["content"], "ok": row["label"]} for row in single
    ]
    entry = dict(columns=dict(prompt="q", response="a", kto_tag="ok"))
    assert single and encode(folder, tmp_path, flat, entry, stage="kto", template=name) == encode(
        folder, tmp_path, single, VERDICTS, stage="kto", template=name
    )


# Texts.

ENDS = [("qwen2_5", None, None), ("qwen2_5", "qwen", "<|im_end|>"), ("llama3_2", "llama3", "<|end_of_text|>"),
        ("llama3_2", "default", None), ("gemma3", None, None)]


@pytest.mark.parametrize("name, template, end", ENDS)
def test_texts(tmp_path, name, template, end):
    """gemma3's tokenizer_config.json says add_bos_token."""
    folder = fetch(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    end = end or tokenizer.eos_token
    bos = tokenizer.bos_token_id if name == "gemma3" else None
    entry = dict(columns=dict(prompt="text"))
    keys = dict(stage="pt") | (dict(template=template) if template else {})
    rows = [{"text": text} for text in TEXTS + [""]]
    texts = [tokenizer.encode(row["text"] + end, add_special_tokens=False) for row in rows]
    together = [token for ids in texts for token in ids]

    blocks = [together[at : at + 32] for at in range(0, len(together) - 31, 32)]
    if bos is not None:
        blocks = [[bos] + block[1:] for block in blocks]
    samples = encode(folder, tmp_path, rows, entry, cutoff_len=32, **keys)
    assert documents(samples) == [[(block, block)] for block in blocks]

    if bos is not None:
        texts = [[bos] + ids for ids in texts]
    cut = [ids[:20] for ids in texts if len(ids) > 1]
    samples = encode(folder, tmp_path, rows, entry, cutoff_len=20, packing=False, **keys)
    assert documents(samples) == [[(ids, ids)] for ids in cut]


# Packed conversations.


def test_packed_rows_hold_the_same_samples(real, tmp_path):
    tokenizer_name, folder, tokenizer = real
    name = NAMES[tokenizer_name]
    chats = conversations()
    rows = [{"messages": chat} for chat in chats]
    entry = None
    keys = dict(template=name, cutoff_len=300)
    alone = [cut_and_label(named_turns(tokenizer, name, chat), 300) for chat in chats]
    neat = encode(folder, tmp_path, rows, entry, neat_packing=True, **keys)
    assert sorted(document for row in documents(neat) for document in row) == sorted(alone)
    joined = encode(folder, tmp_path, rows, entry, packing=True, **keys)
    assert len(joined) == len(neat) < len(rows)
    for one, several in zip(joined, neat):
        lengths = [len(document["input_ids"]) for document in several["documents"]]
        assert sum(lengths) <= 300
        ((ids, labels),) = documents([one])[0]
        assert ids == [token for document in several["documents"] for token in document["input_ids"]]
        assert labels == [label for document in several["documents"] for label in document["labels"]]
        assert one["positions"] == several["positions"] == [i for length in lengths for i in range(length)]
    lower = -(-sum(len(ids) for ids, _ in alone) // 300)
    assert lower <= len(neat) <= 1.3 * lower


# Templates of models that think.


def test_thoughts(tmp_path):
    """qwen3: LLaMA-Factory's rules for answers with and without thoughts."""
    folder = fetch("qwen3")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    def question(text):
        return ids(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")

    none, thought = ids("<think>\n\n</think>\n\n"), "<think>\nhm\n</think>\n\n"
    chat = [("user", "a"), ("assistant", thought + "b"), ("user", "c"), ("assistant", "d")]
    chat = [{"role": role, "content": content} for role, content in chat]
    rows = [{"messages": chat[:3], "chosen": chat[3], "rejected": {"role": "assistant", "content": thought + "e"}}]
    prompt = question("a") + ids("b<|im_end|>\n") + question("c")
    expected = [trained_behind(prompt, none + ids("d<|im_end|>\n")), trained_behind(prompt, ids(f"{thought}e<|im_end|>\n"))]
    assert documents(encode(folder, tmp_path, rows, PAIRS, stage="dpo", template="qwen3")) == [expected]
    expected = [trained_behind(prompt + none, ids(f"{answer}<|im_end|>\n")) for answer in "de"]
    samples = encode(folder, tmp_path, rows, PAIRS, stage="dpo", template="qwen3", enable_thinking=False)
    assert documents(samples) == [expected]
    sample = encode(folder, tmp_path, [{"messages": chat}], stage="sft", template="qwen3_nothink")[0]
    assert tokenizer.decode([label for label in sample["labels"] if label != IGNORE]) == f"{thought}b<|im_end|>\nd<|im_end|>\n"
