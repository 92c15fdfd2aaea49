"""Calls, thoughts, tools and weights of messages through named templates, token for token.

The reference is LLaMA-Factory's encoding, as in test_data: here, what it writes of calls, of tools and of several results.
"""

import json
import shutil

import pytest
import transformers
from test_data import IGNORE, QWEN_SYSTEM, cut_and_label, encode, named_turns
from test_text import fetch

OPENAI = {"formatting": "openai"}
TOOL = {"name": "weather", "description": "Das Wetter", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}
CALLS = [("weather", {"stadt": "Zürich", "days": [1, 2.5, None]}), ("weather", {"b": {"z": True, "a": "x\"\n"}})]
QWEN_TOOLS = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>{}\n</tools>\n\nFor each function call, return a json object with "
    "function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
RESULTS = "\n</tool_response>\n<tool_response>\n"


def dumped(value):
    return json.dumps(value, ensure_ascii=False)


def written(name, calls):
    """As LLaMA-Factory's FunctionFormatter writes them."""
    if name == "llama3":
        objects = [{"name": function, "parameters": arguments} for function, arguments in calls]
        return dumped(objects[0] if len(objects) == 1 else objects)
    return "\n".join(f'<tool_call>\n{dumped({"name": f, "arguments": a})}\n</tool_call>' for f, a in calls)


def message_of(calls, **keys):
    """OpenAI's: the arguments are a JSON text, without spaces here, so that they must be written again."""
    functions = [{"name": name, "arguments": json.dumps(arguments, separators=(",", ":"))} for name, arguments in calls]
    tool_calls = [{"id": f"call_{i}", "type": "function", "function": function} for i, function in enumerate(functions)]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls} | keys


def chat_with_calls(**keys):
    return [
        {"role": "user", "content": "Rain?"},
        message_of(CALLS, **keys),
        {"role": "tool", "tool_call_id": "call_0", "content": "yes"},
        {"role": "tool", "tool_call_id": "call_1", "content": "no"},
        message_of(CALLS[:1]),
        {"role": "tool", "tool_call_id": "call_0", "content": "yes"},
        {"role": "assistant", "content": "It rains."},
    ]


def chat_of_texts(name, between, first=""):
    texts = [("user", "Rain?"), ("assistant", first + written(name, CALLS)), ("tool", f"yes{between}no"),
             ("assistant", written(name, CALLS[:1])), ("tool", "yes"), ("assistant", "It rains.")]
    return [{"role": role, "content": content} for role, content in texts]


@pytest.mark.parametrize("model, name, between", [
    ("qwen2_5", "qwen", RESULTS),
    ("llama3_2", "llama3", "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"),
])
def test_calls_and_results_are_written_as_llamafactory_writes_them(tmp_path, model, name, between):
    tokenizer = transformers.AutoTokenizer.from_pretrained(fetch(model))
    rows = [{"messages": chat_with_calls()}, {"messages": chat_with_calls(content="I look.")}]
    samples = encode(fetch(model), tmp_path, rows, OPENAI, template=name)
    for sample, first in zip(samples, ["", "I look.\n"], strict=True):
        ids, labels = cut_and_label(named_turns(tokenizer, name, chat_of_texts(name, between, first)))
        assert sample["input_ids"] == ids
        assert sample["labels"] == labels


@pytest.mark.parametrize("tools", [[TOOL], [{"type": "function", "function": TOOL}] * 2, json.dumps([TOOL])],
                         ids=["functions", "openai", "text"])
@pytest.mark.parametrize("system", ["Be kind.", None])
def test_tools_stand_in_the_system_text(tmp_path, tools, system):
    tokenizer = transformers.AutoTokenizer.from_pretrained(fetch("qwen2_5"))
    turns = [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "Yes."}]
    chat = ([{"role": "system", "content": system}] if system else []) + turns
    (sample,) = encode(fetch("qwen2_5"), tmp_path, [{"messages": chat, "tools": tools}], OPENAI, template="qwen")
    told = "".join("\n" + dumped({"type": "function", "function": TOOL}) for _ in range(2 if len(tools) == 2 else 1))
    told = {"role": "system", "content": (system or QWEN_SYSTEM) + QWEN_TOOLS.format(told)}
    assert (sample["input_ids"], sample["labels"]) == cut_and_label(named_turns(tokenizer, "qwen", [told] + turns))


def test_thoughts_beside_an_answer_are_those_before_its_text(tmp_path):
    folder = fetch("qwen3")

    def chats(answer, **keys):
        turn = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": answer} | keys]
        return [{"messages": turn + turn}]

    for keys in [{}, {"enable_thinking": False}, {"mask_history": True}]:
        beside = encode(folder, tmp_path, chats("So.", reasoning_content="hm\noh"), OPENAI, template="qwen3", **keys)
        before = encode(folder, tmp_path, chats("<think>\nhm\noh\n</think>\n\nSo."), OPENAI, template="qwen3", **keys)
        assert [sample["input_ids"] for sample in beside] == [sample["input_ids"] for sample in before]
        assert [sample["labels"] for sample in beside] == [sample["labels"] for sample in before]
    with pytest.raises(AssertionError, match="template qwen3_nothink has no place for them"):
        encode(folder, tmp_path, chats("So.", thinking="hm"), OPENAI, template="qwen3_nothink")
    with pytest.raises(AssertionError, match="an answer has thoughts in its text"):
        encode(folder, tmp_path, chats("<think>\noh\n</think>\n\nSo.", thinking="hm"), OPENAI, template="qwen3")


@pytest.mark.parametrize("keys", [{}, {"train_on_prompt": True}], ids=["answers", "prompts"])
def test_answers_of_weight_0_have_no_labels(tmp_path, keys):
    tokenizer = transformers.AutoTokenizer.from_pretrained(fetch("qwen2_5"))
    chat = [{"role": role, "content": text} for role, text in [("user", "a"), ("assistant", "b")] * 3]
    weighed = [dict(message) for message in chat]
    weighed[1]["weight"], weighed[3]["train"], weighed[5]["weight"] = 0, False, 1
    (sample,) = encode(fetch("qwen2_5"), tmp_path, [{"messages": weighed}], OPENAI, template="qwen", **keys)
    turns = named_turns(tokenizer, "qwen", chat)
    prompt = keys.get("train_on_prompt", False)
    labels = []
    for i, (source, target) in enumerate(turns):
        labels += (source if prompt else [IGNORE] * len(source)) + (target if i == 2 else [IGNORE] * len(target))
    assert sample["input_ids"] == [token for turn in turns for ids in turn for token in ids]
    assert sample["labels"] == labels


@pytest.mark.parametrize("columns, messages, match", [
    ({"tools": [TOOL | {"parameters": {}}]}, [], "has no parameters.properties, whose arguments are printed"),
    ({}, chat_with_calls(), "template default has no place for more than one"),
    ({}, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}], "weight: 0 or train: false"),
])
def test_what_a_named_template_cannot_print_is_refused_or_left_out(tmp_path, columns, messages, match):
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    bad = {"messages": messages or good["messages"]} | columns
    with pytest.raises(AssertionError, match=match):
        encode(fetch("qwen2_5"), tmp_path, [good, bad], OPENAI, template="default")
    kept = encode(fetch("qwen2_5"), tmp_path, [good, bad], OPENAI, template="default", on_bad_row="skip")
    assert len(kept) == 1


DOCUMENTS = [{"title": "Köln \"am\" Rhein", "text": "It rains."}, {"title": "Bonn", "text": "Sun.\nMuch."}]
WITH_DOCUMENTS = (
    "{% if documents %}{% for d in documents %}[{{ d.title }}] {{ d.text }}\n{% endfor %}{% endif %}"
    "{% if preserve_thinking %}keeps {% endif %}{% if enable_thinking is defined %}{{ enable_thinking }} {% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_template(folder, template):
    shutil.copytree(fetch("qwen2_5"), folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_documents_and_variables_go_to_the_models_own_template(tmp_path):
    folder = with_template(tmp_path / "model", WITH_DOCUMENTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "It rains."}]
    rows = [{"messages": chat, "docs": docs} for docs in (DOCUMENTS, json.dumps(DOCUMENTS), None, [])]
    entry = OPENAI | {"columns": {"messages": "messages", "documents": "docs"}}
    for keys in ({}, {"enable_thinking": False}, {"enable_thinking": True}, {"preserve_thinking": True}):
        samples = encode(folder, tmp_path, rows, entry, **keys)
        for row, sample in zip(rows, samples, strict=True):
            documents = DOCUMENTS if row["docs"] else None
            expected = tokenizer.apply_chat_template(chat, documents=documents, return_dict=True, **keys)["input_ids"]
            assert sample["input_ids"] == expected
            begin = len(tokenizer.apply_chat_template(chat[:1], documents=documents, add_generation_prompt=True,
                                                      return_dict=True, **keys)["input_ids"])
            assert sample["labels"][:begin] == [IGNORE] * begin and sample["labels"][begin] == expected[begin]
    with pytest.raises(AssertionError, match="the row has documents, and template qwen prints none"):
        encode(folder, tmp_path, rows, entry, template="qwen")
    with pytest.raises(AssertionError, match="documents are a list of objects of texts"):
        encode(folder, tmp_path, [{"messages": chat, "docs": ["It rains."]}], entry)
    untitled = with_template(tmp_path / "untitled", WITH_DOCUMENTS.replace("{{ d.title }}", ""))
    with pytest.raises(AssertionError, match="does not print the documents of the row .title: Köln"):
        encode(untitled, tmp_path, rows, entry)
