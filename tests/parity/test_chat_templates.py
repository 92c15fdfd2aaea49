"""Chats by the models' own templates: ids are those of transformers, and labels those of the texts that a regular
expression of each family finds in its renderings (chat_families.py). Each answer ends where its server stops.
"""

import datetime
import json
import re

import pytest
from chat_families import FAMILIES, write_folder
from test_data import IGNORE, encode
from transformers.utils.chat_template_utils import render_jinja_template

OPENAI = dict(formatting="openai")

# One answer is another's question, and one is the name of a role.
TURNS = [("What is 2 + 2?", "It is 4."), ("Say it in Köln", "Two\nlines, and\n\n  an indent"), ("日本語 🙂?", "yes"),
         ("yes", "assistant")]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "description": "A town"}, "days": {"type": "integer"}},
                "required": ["place"],
            },
        },
    }
]
CALLS = [{"id": f"calling{number:02}", "type": "function",
          "function": {"name": "weather", "arguments": json.dumps(arguments, ensure_ascii=False)}}
         for number, arguments in enumerate([{"place": 'Köln "am" Rhein', "days": 2}, {"place": "Ulm"}])]


def turns(count, system=None, **answers):
    """Questions and answers in turn; answers: key=[value of each answer, or None]."""
    chat = [{"role": "system", "content": system}] if system else []
    for i, (question, answer) in enumerate(TURNS[:count]):
        more = {key: values[i] for key, values in answers.items() if values[i] is not None}
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": answer} | more]
    return chat


def calling(calls=1, text="", **more):
    """A question, calls, their results."""
    results = [{"role": "tool", "tool_call_id": call["id"], "name": "weather", "content": '{"sky": "grey"}'}
               for call in CALLS[:calls]]
    return [{"role": "user", "content": "How is it?"},
            {"role": "assistant", "content": text, "tool_calls": CALLS[:calls]} | more, *results]


ANSWER = {"role": "assistant", "content": "Grey."}
THOUGHT, OTHER_THOUGHT = "Hm: 1 < 2?\nSo be it.", "Once more."
CHATS = {
    "one": turns(1),
    "system": turns(1, "Be brief."),
    "two": turns(2),
    "four": turns(4, "Be brief."),
    "untrained": turns(2, weight=[0, None]),
    "thoughts": turns(1, reasoning_content=[THOUGHT]),
    "thoughts_first": turns(2, reasoning_content=[THOUGHT, None]),
    "thoughts_twice": turns(2, reasoning_content=[THOUGHT, OTHER_THOUGHT]),
    "thoughts_in_text": [{"role": "user", "content": "Why?"},
                         {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\nSo."}],
    "call": [*calling(), ANSWER],
    "call_again": [*calling(), ANSWER, *calling(), ANSWER],
    "two_calls": [*calling(2), ANSWER],
    "call_last": calling()[:2],
    "call_text": [*calling(text="I look."), ANSWER],
    "call_thoughts": [*calling(reasoning_content=THOUGHT), ANSWER | {"reasoning_content": OTHER_THOUGHT}],
    # More than LocatedChat::kMostWholePrompts answers.
    "many": turns(4) * 9,
    "call_many": [*calling(), ANSWER, *turns(1)] * 12,
}


def tools_of(family, name):
    return TOOLS if "call" in name and family.prints_tools else None


def row_of(family, name):
    return {"messages": CHATS[name], "tools": tools_of(family, name)}


def as_read(family, chat):
    """A chat as the family's template reads it."""
    chat = json.loads(json.dumps(chat))
    for message in chat:
        message.pop("weight", None)
        if "tool_calls" not in message:
            continue
        if family.text_arguments and not message["content"]:
            message["content"] = None
        for call in message["tool_calls"]:
            if not family.text_arguments:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return chat


def render(family, tokenizer, chat, tools):
    """apply_chat_template of transformers, which takes a content that is null away. Templates that want one get it."""
    if all(message.get("content", "") is not None for message in chat):
        return tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, **family.keys)
    return render_jinja_template([chat], tools=tools, chat_template=tokenizer.chat_template, **tokenizer.special_tokens_map,
                                 **family.keys)[0][0]


def rendered(family, tokenizer, name):
    """ids by transformers, and labels of the answers that the family's expression finds in the text."""
    chat, tools = as_read(family, CHATS[name]), tools_of(family, name)
    text = render(family, tokenizer, chat, tools)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = encoded["input_ids"]
    answers = [message for message in CHATS[name] if message["role"] == "assistant"]
    spans = [match.span(1) for match in re.finditer(family.answer, text, re.DOTALL)]
    assert len(spans) == len(answers), (text, spans)
    labels = [IGNORE] * len(ids)
    for answer, (first, last) in zip(answers, spans):
        if answer.get("weight") == 0:
            continue
        for token, (begin, end) in enumerate(encoded["offset_mapping"]):
            if end > first and begin < last:
                labels[token] = ids[token]
    if spans[-1][1] == len(text) and not text.endswith(tuple(family.stops)) and family.end:
        token = tokenizer.convert_tokens_to_ids(family.call_end if family.call_end and "tool_calls" in answers[-1] else family.end)
        ids, labels = ids + [token], labels + [token]
    return ids, labels


def labelled_texts(tokenizer, labels):
    """The text of each run of labels."""
    runs, before = [], IGNORE
    for label in labels:
        if label != IGNORE:
            runs.append([label]) if before == IGNORE else runs[-1].append(label)
        before = label
    return [tokenizer.decode(run, skip_special_tokens=False) for run in runs]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    family = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return family, folder, write_folder(family, folder)


def test_answers_of_a_family(model, tmp_path):
    family, folder, tokenizer = model
    names = [name for name in CHATS if name not in family.refused | family.left_out]
    day = None
    while day != datetime.date.today():  # which some templates write
        day = datetime.date.today()
        expected = {name: rendered(family, tokenizer, name) for name in names}
        samples = encode(folder, tmp_path, [row_of(family, name) for name in names], OPENAI, **family.keys)
    assert len(samples) == len(names)
    for name, sample in zip(names, samples):
        ids, labels = expected[name]
        texts = labelled_texts(tokenizer, labels)
        assert labelled_texts(tokenizer, sample["labels"]) == texts, name
        assert (sample["input_ids"], sample["labels"]) == (ids, labels), name
        ended = texts[-1:] if name in family.unended else texts
        assert all(text.rstrip().endswith(tuple(family.stops)) for text in ended), (name, texts)


def test_parts_that_a_template_leaves_out(model, tmp_path):
    family, folder, _ = model
    rows = [row_of(family, name) for name in sorted(family.refused)]
    if not family.prints_tools:
        rows.append({"messages": CHATS["call"], "tools": TOOLS})
    # Another text of the row names the call that is lost.
    if "call" in family.refused:
        rows.append({"messages": [*calling(text="I call weather: place Ulm, days 2."), ANSWER]})
    for row in rows:
        with pytest.raises(AssertionError, match=r"row 1: the model\\?'s chat_template"):
            encode(folder, tmp_path, [row], OPENAI, **family.keys)
