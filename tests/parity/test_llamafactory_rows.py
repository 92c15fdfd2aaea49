"""Rows of files through LLaMA-Factory's own converters, templates and processors, token for token: every named template with
every kind of row (`make test-cases`) and every key that chooses labels or cuts, and LLaMA-Factory's example data sets."""

import dataclasses
import datetime
import importlib
import json
import types
import typing

import llamafactory_data
import pytest
import transformers
from conftest import words_of_the_program
from probes import data_probe
from test_data import IGNORE, encode
from test_llamafactory_templates import ENDS_ONCE, ONE_CALL, THOUGHTS, encoder, folder  # noqa: F401

SOURCE = llamafactory_data.source()
NAMES = words_of_the_program("template")
NO_TOOLS = {"phi4_mini"}  # its tools are the text of the column
PROCESSORS = {"sft": ("supervised", "SupervisedDatasetProcessor"), "dpo": ("pairwise", "PairwiseDatasetProcessor"),
              "kto": ("feedback", "FeedbackDatasetProcessor"), "asked": ("unsupervised", "UnsupervisedDatasetProcessor")}

LONG = " ".join(f"word {i}" for i in range(60))
TOOLS = [{"name": "weather", "description": "Wetter in \"Köln\" <b>",
          "parameters": {"type": "object", "required": ["place"], "properties": {
              "place": {"type": "string", "description": "the town", "enum": ["Köln", "Bonn"]},
              "days": {"type": "array", "description": "which", "items": {"type": "number"}},
              "unit": {"description": "", "default": 1.5}}}},
         {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}]
ALPACA = dict(columns=dict(prompt="instruction", query="input", response="output", history="history", system="system",
                           tools="tools"))
SHAREGPT = dict(formatting="sharegpt", columns=dict(messages="conversations", system="system", tools="tools"))
PAIRS = SHAREGPT | dict(ranking=True, columns=SHAREGPT["columns"] | dict(chosen="chosen", rejected="rejected"))
VERDICTS = SHAREGPT | dict(columns=SHAREGPT["columns"] | dict(kto_tag="label"))


def alpaca_rows(tools):
    whole = [("Hello", "", "Hi.", [], ""), ("Sum up:", LONG, "Words.", [], "Be brief."), ("Write", "", LONG, [], ""),
             ("And now?", "here", "Now.", [["Who?", "Me."], ["Where?", LONG]], "You are kind.")]
    rows = [dict(instruction=prompt, input=query, output=answer, history=history, system=system, tools="")
            for prompt, query, answer, history, system in whole]
    return rows + [row | dict(tools=tools) for row in rows[1::2]]


def chats(template, tools):
    calls = [{"name": "weather", "arguments": {"place": "Köln \"am\" Rhein", "days": [1, 2.5, None]}},
             {"name": "time", "arguments": {}}]
    begin, close = THOUGHTS.get(template, ("<think>\n", "\n</think>\n\n"))
    thought = f"{begin}Hm: 1 < 2?\n{close}"
    turns = [("human", "Who?"), ("gpt", "Me."), ("human", LONG), ("gpt", "Much."), ("human", "And?"), ("gpt", LONG)]
    whole = [turns[:2], turns[:4], turns, [("system", "Be kind."), *turns[2:]],
             [("human", "a"), ("gpt", thought + "b"), ("human", "c"), ("gpt", thought + "d")],
             [("human", "a"), ("gpt", thought + "b"), ("human", "c"), ("gpt", "d")]]
    called = calls[0] if template in ONE_CALL else calls
    whole.append([("human", "What is it"), ("function_call", json.dumps(called, ensure_ascii=False)),
                  ("observation", '{"sky": 1}'), ("gpt", "Rain.")])
    rows = [dict(conversations=[{"from": role, "value": text} for role, text in chat], system=system, tools="")
            for chat in whole for system in ("", "You help.")]
    return rows + [row | dict(tools=tools) for row in rows]


def answer_apart(row):
    *before, last = row["conversations"]
    return row | dict(conversations=before), last


@pytest.fixture(scope="module")
def theirs():
    template, *_ = llamafactory_data.load()
    converter = importlib.import_module("llamafactory.data.converter")
    [attributes] = llamafactory_data.functions(
        "data/parser.py", ["DatasetAttr"], dict(dataclass=dataclasses.dataclass, Literal=typing.Literal, Any=typing.Any))

    def rows(stage, template_name, folder, rows, entry, **keys):  # noqa: F811
        """Documents of each row: ids and labels."""
        attribute = attributes("file", "rows")
        attribute.join(entry)
        convert = converter.DATASET_CONVERTERS[attribute.formatting](attribute, types.SimpleNamespace(media_dir=""))
        converted = [convert(row) for row in rows]
        batch = {name: [one[name] for one in converted] for name in converted[0]}
        file, kind = PROCESSORS[stage]
        module = importlib.import_module(f"llamafactory.data.processor.{file}")
        made = encoder((template, module), kind, folder, template_name, **keys).preprocess_dataset(batch)
        if stage == "asked":  # a question, and the answer as labels: the document of both
            return [[(ids + labels, [IGNORE] * len(ids) + labels)] for ids, labels in zip(made["input_ids"], made["labels"])]
        parts = {"sft": [""], "dpo": ["chosen_", "rejected_"], "kto": ["", "kl_"]}[stage]
        return [[(made[f"{part}input_ids"][i], made[f"{part}labels"][i]) for part in parts]
                for i in range(len(made[f"{parts[0]}input_ids"]))]

    return types.SimpleNamespace(rows=rows, is_reasoning=lambda name: type(template.TEMPLATES[name]).__name__ != "Template"
                                 and hasattr(template.TEMPLATES[name], "get_thought_word_ids")
                                 and isinstance(template.TEMPLATES[name], template.ReasoningTemplate))


def compare(theirs, stage, template, folder, place, rows, entry, **keys):  # noqa: F811
    """Returns the share of rows that are compared."""
    same_day = False
    while not same_day:  # llama3 writes the date
        day = datetime.date.today()
        wanted = theirs.rows(stage, template, folder, rows, entry, **keys)
        ours = encode(folder, place, rows, entry, template=template, **(ASKED if stage == "asked" else dict(stage=stage)), **keys)
        same_day = day == datetime.date.today()
    num_same = 0
    for row, sample, documents in zip(rows, ours, wanted, strict=True):
        if any(len(labels) > len(ids) for ids, labels in documents):
            continue  # it sets an end token's label before a question that was cut to nothing
        assert [(one["input_ids"], one["labels"]) for one in sample["documents"]] == documents, (keys, row)
        num_same += 1
    return num_same / len(rows)


ASKED = dict(do_train=False, eval_dataset="rows", do_predict=True, predict_with_generate=True)
CUT = dict(cutoff_len=70)
VARIANTS = [{}, {"mask_history": True}, {"train_on_prompt": True}, CUT, {"cutoff_len": 130}, CUT | {"mask_history": True},
            {"default_system": "It's \"me\"."}, {"enable_thinking": False}, {"mask_history": True, "preserve_thinking": True}]


# One for each way to write tools. Answers are compared in every template, and what else is made of the same messages in these.
FOR_EXAMPLES = ["qwen3_nothink", "qwen3_5", "llama3", "glm4_moe", "mistral", "gpt_oss", "alpaca", "gemma2"]
FIRST_OF_NAMES = [name if name in FOR_EXAMPLES else pytest.param(name, marks=pytest.mark.rest) for name in NAMES]


@pytest.mark.parametrize("template", NAMES)
def test_answers(template, theirs, folder, tmp_path):  # noqa: F811
    """Of one turn and of several, with a system text, tools, calls, thoughts, a history; cut in a question, an answer, a
    middle turn."""
    tools = "" if template in NO_TOOLS else json.dumps(TOOLS, ensure_ascii=False)
    for variant in VARIANTS:
        if variant.get("train_on_prompt") and template in ENDS_ONCE or (
                {"enable_thinking", "preserve_thinking"} & set(variant) and not theirs.is_reasoning(template)):
            continue
        for rows, entry in ((alpaca_rows(tools), ALPACA), (chats(template, tools), SHAREGPT)):
            assert compare(theirs, "sft", template, folder, tmp_path, rows, entry, **variant) > 0.7


@pytest.mark.parametrize("template", FIRST_OF_NAMES)
def test_questions_to_answer(template, theirs, folder, tmp_path):  # noqa: F811
    """predict_with_generate: the last answer is the label."""
    tools = "" if template in NO_TOOLS else json.dumps(TOOLS, ensure_ascii=False)
    for variant in ({}, CUT, {"enable_thinking": False}, {"preserve_thinking": True}):
        if {"enable_thinking", "preserve_thinking"} & set(variant) and not theirs.is_reasoning(template):
            continue
        assert compare(theirs, "asked", template, folder, tmp_path, chats(template, tools), SHAREGPT, **variant) == 1


@pytest.mark.parametrize("template", FIRST_OF_NAMES)
def test_preferences(template, theirs, folder, tmp_path):  # noqa: F811
    """Pairs, and verdicts with the answer of the row before."""
    tools = "" if template in NO_TOOLS else json.dumps(TOOLS, ensure_ascii=False)
    rows = [row for row in chats(template, tools)]
    pairs, verdicts = [], []
    for i, row in enumerate(rows):
        asked, last = answer_apart(row)
        pairs.append(asked | dict(chosen=last, rejected={"from": "gpt", "value": "No, no." if i % 2 else LONG}))
        verdicts.append(row | dict(label=i % 3 != 0))
    for variant in ({}, CUT, {"preserve_thinking": True}):
        if "preserve_thinking" in variant and not theirs.is_reasoning(template):
            continue
        assert compare(theirs, "dpo", template, folder, tmp_path, pairs, PAIRS, **variant) == 1
        assert compare(theirs, "kto", template, folder, tmp_path, verdicts, VERDICTS, **variant) == 1


EXAMPLES = {"identity": "sft", "alpaca_en_demo": "sft", "alpaca_zh_demo": "sft", "glaive_toolcall_en_demo": "sft",
            "glaive_toolcall_zh_demo": "sft", "dpo_en_demo": "dpo", "dpo_zh_demo": "dpo", "kto_en_demo": "kto"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_data_sets(name, theirs, folder, tmp_path):  # noqa: F811
    entry = json.loads((SOURCE / "data" / "dataset_info.json").read_text())[name]
    # Of an empty list of tools, LLaMA-Factory prints the text around tools.
    rows = [row for row in json.loads((SOURCE / "data" / entry.pop("file_name")).read_text())[:80] if row.get("tools") != "[]"][:40]
    for i, template in enumerate(FOR_EXAMPLES if "tool" in name else FOR_EXAMPLES[:2]):
        assert compare(theirs, EXAMPLES[name], template, folder, tmp_path, rows, entry, cutoff_len=256 << i) > 0.9


class Plugin:
    """Where v1 registers its functions."""

    def __init__(self, name):
        pass

    def register(self, *_):
        return lambda function: function


def v1_functions(path, *names):
    known = {name: dict for name in ("Message", "ModelInput", "ToolCall", "SFTSample", "AlpacaSample", "SharegptSample")}
    known |= dict(RenderingPlugin=Plugin, DataConverterPlugin=Plugin, Processor=object, IGNORE_INDEX=-100, json=json,
                  get_tokenizer=lambda tokenizer: tokenizer, Any=typing.Any)
    return llamafactory_data.functions(f"v1/{path}", names, known)


def v1_render(template):
    if template == "chatml":
        return v1_functions("core/utils/rendering.py", "render_chatml_messages")[-1]
    helpers = ["_update_model_input", "_concat_text_content"]
    if template == "qwen3":
        helpers += ["_get_last_query_index", "_split_assistant_content"]
    return v1_functions(f"plugins/model_plugins/templates/{template}.py", *helpers, f"render_{template}_messages")[-1]


@pytest.mark.parametrize("template", ["chatml", "qwen3", "qwen3_nothink"])
def test_rows_of_v1(template, folder, tmp_path):  # noqa: F811
    """By v1's own converters and templates: other labels, and cut at the end."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    converters = v1_functions("plugins/data_plugins/converter.py", "alpaca_converter", "sharegpt_converter")
    alpaca = [{key: row[key] for key in ("instruction", "input", "output", "system") if row[key] or key != "system"}
              for row in alpaca_rows("")]
    sharegpt = [{"conversations": row["conversations"]} for row in chats(template, "")
                if "<think>" not in json.dumps(row) and (template != "chatml" or "function_call" not in json.dumps(row))]
    listed = ""
    for name, rows in (("alpaca", alpaca), ("sharegpt", sharegpt)):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
        listed += f"{name}:\n  path: {tmp_path}/{name}.json\n  source: local\n  converter: {name}\n"
    (tmp_path / "list.yaml").write_text(listed)
    render, samples = v1_render(template), []
    for converter, rows in zip(converters, (alpaca, sharegpt)):
        samples += [render(tokenizer, converter(row)["messages"]) for row in rows]
    for cutoff_len in (1 << 20, 70):
        config = dict(model=str(folder), model_class="llm", train_dataset=str(tmp_path / "list.yaml"), template=template,
                      output_dir="unused", cutoff_len=cutoff_len, on_bad_row="skip")
        (tmp_path / "config.json").write_text(json.dumps(config))
        expected = [(one["input_ids"][:cutoff_len], one["labels"][:cutoff_len]) for one in samples]
        expected = [(ids, labels) for ids, labels in expected if any(label >= 0 for label in labels[1:])]
        ours = [(one["input_ids"], one["labels"]) for one in data_probe.examples(tmp_path / "config.json")]
        assert ours == expected
