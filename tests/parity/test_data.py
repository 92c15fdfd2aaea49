"""Ids and label masks of rows against transformers' tokenizers and chat templates, token for token.

The reference for named templates is LLaMA-Factory's encoding, written down here once more: each
message is tokenized for itself, questions and answers share cutoff_len turn by turn.
"""

import json
import random
import shutil

import pytest
import transformers
from probes import data_probe
from test_text import fetch

IGNORE = -100

TEXTS = [
    "Hello there", "What is 2 + 2?", " leading and trailing ", "\nbegins with a newline", "ends with one\n",
    "\n\n\n", "a\tb\r\nc", "naïve café 日本語 한국어 עברית 🙂👩‍👩‍👧‍👦", "def f(x):\n    return x ** 2\n\n",
    "It's 3.14159, they've said; isn't it?", "1234567890 00012", "…—«quotes» “curly”", "x", "  ",
    "a long one: " + " ".join(str(i * 7919) for i in range(60)), "{{content}} {% if x %} {{idx}}",
    "<|im_end|> inside", "<|eot_id|><|start_header_id|>user", '{"json": [1, null]}', "Ω ﬁ \u00a0 \u3000 \u200b end",
]


def conversations():
    """About 60: several turns, system messages, texts that tokenizers join across borders."""
    rng = random.Random(5)
    chats = [[("user", text), ("assistant", answer)] for text, answer in zip(TEXTS, TEXTS[1:] + TEXTS[:1])]
    for turns in range(1, 5):
        for _ in range(10):
            chat = [("system", rng.choice(TEXTS))] if rng.random() < 0.5 else []
            for _ in range(turns):
                chat += [("user", rng.choice(TEXTS)), ("assistant", rng.choice(TEXTS))]
            chats.append(chat)
    return [[{"role": role, "content": content} for role, content in chat] for chat in chats]


TAGS = dict(role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant", system_tag="system",
            observation_tag="tool", function_tag="function_call")
SHAREGPT = dict(formatting="sharegpt", columns=dict(messages="messages"), tags=TAGS)  # of chats_as_rows


def encode(folder, place, rows, entry=None, **keys):
    """What Longspan makes of rows: a list of {"input_ids", "labels"}."""
    (place / "rows.json").write_text(json.dumps(rows))
    info = {"rows": {"file_name": "rows.json"} | (SHAREGPT if entry is None else entry)}
    (place / "dataset_info.json").write_text(json.dumps(info))
    config = dict(model_name_or_path=str(folder), dataset="rows", dataset_dir=str(place))
    config |= dict(output_dir="unused", do_train=True, cutoff_len=1 << 20) | keys
    (place / "config.json").write_text(json.dumps(config))
    return data_probe.examples(place / "config.json")


def chats_as_rows(chats):
    return [{"messages": chat} for chat in chats]


@pytest.fixture(scope="module", params=["qwen2_5", "llama3_2"])
def real(request):
    folder = fetch(request.param)
    return request.param, folder, transformers.AutoTokenizer.from_pretrained(folder)


def compare(chats, samples, expected):
    assert len(samples) == len(chats)
    for chat, sample, (ids, labels) in zip(chats, samples, expected):
        assert sample["input_ids"] == ids, chat
        assert sample["labels"] == labels, chat


def rendered_turns(tokenizer, chat):
    """ids and labels by transformers: an answer is what the rendering gains by it."""
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    ids = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=True)["input_ids"]
    assert ids == encoded["input_ids"]
    labels = [IGNORE] * len(ids)
    for i, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(chat[:i], tokenize=False, add_generation_prompt=True)
        after = tokenizer.apply_chat_template(chat[: i + 1], tokenize=False)
        assert whole.startswith(before) and whole.startswith(after)
        for token, (begin, end) in enumerate(encoded["offset_mapping"]):
            if end > len(before) and begin < len(after):
                labels[token] = ids[token]
    return ids, labels


def test_model_template(real, tmp_path):
    _, folder, tokenizer = real
    chats = conversations()
    samples = encode(folder, tmp_path, chats_as_rows(chats))
    compare(chats, samples, [rendered_turns(tokenizer, chat) for chat in chats])


def test_model_template_with_default_system_and_train_on_prompt(real, tmp_path):
    _, folder, tokenizer = real
    chats = conversations()
    samples = encode(folder, tmp_path, chats_as_rows(chats), default_system="Be brief.", train_on_prompt=True)
    system = {"role": "system", "content": "Be brief."}
    whole = [chat if chat[0]["role"] == "system" else [system] + chat for chat in chats]
    ids = [rendered_turns(tokenizer, chat)[0] for chat in whole]
    compare(chats, samples, [(row, row) for row in ids])


GENERATION = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}\n"
    "{% else %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_generation_blocks(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(fetch("qwen2_5"), folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = GENERATION
    tokenizer.save_pretrained(folder)
    chats = conversations()
    expected = []
    for chat in chats:
        row = tokenizer.apply_chat_template(
            chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        mask = row["assistant_masks"]
        expected.append(
            (row["input_ids"], [i if m else IGNORE for i, m in zip(row["input_ids"], mask)])
        )
    assert any(label != IGNORE for _, labels in expected for label in labels)
    compare(chats, encode(folder, tmp_path, chats_as_rows(chats)), expected)


# Named templates, as LLaMA-Factory encodes them.

QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


def named_turns(tokenizer, name, chat, default_system=None):
    """[(question ids, answer ids)], each message tokenized for itself."""

    def ids(*pieces):
        return [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]

    eos = tokenizer.eos_token
    if name in ("qwen", "chatml"):
        frames = dict(
            system=lambda text: ids(f"<|im_start|>system\n{text}<|im_end|>\n"),
            user=lambda text: ids(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"),
            assistant=lambda text: ids(f"{text}<|im_end|>\n"),
            tool=lambda text: ids(
                f"<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
                if name == "qwen"
                else f"<|im_start|>tool\n{text}<|im_end|>\n<|im_start|>assistant\n"
            ),
        )
        prefix, system = [], QWEN_SYSTEM if name == "qwen" else ""
    elif name == "llama3":
        def header(role):
            return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

        frames = dict(
            system=lambda text: ids(f"{header('system')}{text}<|eot_id|>"),
            user=lambda text: ids(f"{header('user')}{text}<|eot_id|>{header('assistant')}"),
            assistant=lambda text: ids(f"{text}<|eot_id|>"),
            tool=lambda text: ids(f"{header('ipython')}{text}<|eot_id|>{header('assistant')}"),
        )
        prefix, system = [tokenizer.bos_token_id], ""
    else:
        frames = dict(
            system=lambda text: ids(f"System: {text}", eos, "\n"),
            user=lambda text: ids(f"Human: {text}", eos, "\nAssistant:"),
            assistant=lambda text: ids(text, eos, "\n"),
        )
        frames["tool"] = frames["user"]
        prefix, system = [], ""
    if default_system is not None:
        system = default_system
    if chat[0]["role"] == "system":
        system, chat = chat[0]["content"] or system, chat[1:]
    first = prefix + (frames["system"](system) if system else [])
    turns = []
    for question, answer in zip(chat[::2], chat[1::2]):
        source = first + frames[question["role"]](question["content"])
        turns.append((source, frames["assistant"](answer["content"])))
        first = []
    return turns


def shared_lengths(source, target, budget):
    if 2 * target < budget:
        most = budget
    elif 2 * source < budget:
        most = budget - source
    else:
        most = int(budget * (target / (source + target)))
    target = min(most, target)
    return min(max(budget - target, 0), source), target


def cut_and_label(turns, cutoff_len=1 << 20, mask_history=False, train_on_prompt=False):
    parts, length = [], 0
    for i, (source, target) in enumerate(reversed(turns) if mask_history else turns):
        if length >= cutoff_len:
            break
        s, t = shared_lengths(len(source), len(target), cutoff_len - length)
        length += s + t
        source, target = source[:s], target[:t]
        labels = (source if train_on_prompt else [IGNORE] * s) + (
            [IGNORE] * t if mask_history and i > 0 else target
        )
        parts.append((source + target, labels))
    if mask_history:
        parts.reverse()
    return [token for ids, _ in parts for token in ids], [label for _, labels in parts for label in labels]


TEMPLATES = {"qwen2_5": ["qwen", "chatml", "default"], "llama3_2": ["llama3", "default"]}
VARIANTS = [
    {},
    {"cutoff_len": 40},
    {"cutoff_len": 97},
    {"mask_history": True},
    {"mask_history": True, "cutoff_len": 60},
    {"train_on_prompt": True, "cutoff_len": 120},
    {"default_system": "Be brief."},
    {"default_system": ""},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda keys: "-".join(map(str, keys.items())) or "plain")
def test_named_templates(real, tmp_path, variant):
    tokenizer_name, folder, tokenizer = real
    chats = conversations() + [
        [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": "I look."},
            {"role": "tool", "content": '{"rain": true}'},
            {"role": "assistant", "content": "It rains."},
        ]
    ]
    for name in TEMPLATES[tokenizer_name]:
        keys = {key: value for key, value in variant.items() if key != "default_system"}
        expected = [
            cut_and_label(named_turns(tokenizer, name, chat, variant.get("default_system")), **keys)
            for chat in chats
        ]
        compare(chats, encode(folder, tmp_path, chats_as_rows(chats), template=name, **variant), expected)


@pytest.mark.parametrize("cutoff_len", [30, 75])
def test_model_template_is_cut_turn_by_turn(real, tmp_path, cutoff_len):
    _, folder, tokenizer = real
    chats = [chat for chat in conversations() if chat[0]["role"] == "system"]
    expected = []
    for chat in chats:
        ids, labels = rendered_turns(tokenizer, chat)
        turns, begin = [], 0
        while begin < len(ids):
            middle = next(i for i in range(begin, len(ids)) if labels[i] != IGNORE)
            end = next((i for i in range(middle, len(ids)) if labels[i] == IGNORE), len(ids))
            turns.append((ids[begin:middle], ids[middle:end]))
            begin = end
        expected.append(cut_and_label(turns, cutoff_len))
    compare(chats, encode(folder, tmp_path, chats_as_rows(chats), cutoff_len=cutoff_len), expected)


def test_alpaca_rows(real, tmp_path):
    tokenizer_name, folder, tokenizer = real
    name = TEMPLATES[tokenizer_name][0]
    rows = [
        {"instruction": "a", "input": "b", "output": "c", "system": "s", "history": [["p", "q"], ["r", "t"]]},
        {"instruction": "a", "input": "", "output": "c", "system": "", "history": []},
        {"instruction": "a", "input": None, "output": "日本語", "system": None, "history": None},
    ]
    columns = dict(prompt="instruction", query="input", response="output", system="system", history="history")

    def chat(row):
        messages = [("system", row["system"])] if row["system"] else []
        for question, answer in row["history"] or []:
            messages += [("user", question), ("assistant", answer)]
        question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
        messages += [("user", question), ("assistant", row["output"])]
        return [{"role": role, "content": content} for role, content in messages]

    samples = encode(folder, tmp_path, rows, entry={"columns": columns}, template=name)
    expected = [cut_and_label(named_turns(tokenizer, name, chat(row))) for row in rows]
    compare(rows, samples, expected)


def test_function_calls_read_as_transformers_reads_them(tmp_path):
    """A function_call turn through the model's template is transformers' message with tool_calls."""
    folder = fetch("qwen2_5")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    call = {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2.5]}}
    rows = [
        {
            "conversations": [
                {"from": "human", "value": "Rain?"},
                {"from": "function_call", "value": json.dumps(call)},
                {"from": "observation", "value": "yes"},
                {"from": "gpt", "value": "It rains."},
            ]
        }
    ]
    chat = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": "yes"},
        {"role": "assistant", "content": "It rains."},
    ]
    samples = encode(folder, tmp_path, rows, entry={"formatting": "sharegpt"})
    compare([chat], samples, [rendered_turns(tokenizer, chat)])
    text = tokenizer.decode(encode(folder, tmp_path, rows, {"formatting": "sharegpt"}, template="qwen")[0]["input_ids"])
    assert f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call><|im_end|>" in text


def test_description_names_what_is_trained(tmp_path):
    chat = [{"role": "user", "content": "Say yes"}, {"role": "assistant", "content": "yes indeed"}]
    (sample,) = encode(fetch("qwen2_5"), tmp_path, chats_as_rows([chat]), template="qwen")
    description = sample["description"]
    trained = sum(label != IGNORE for label in sample["labels"])
    assert description.startswith(f"{len(sample['labels'])} tokens, {trained} of them trained")
    assert description.endswith("--- trained ---\nyes indeed<|im_end|>\n\n---")
