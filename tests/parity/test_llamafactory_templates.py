"""Rows by each named template against LLaMA-Factory's own code, token for token."""

import copy
import json
import re
import shutil
import subprocess
import types

import llamafactory_data
import pytest
import transformers
from conftest import PROGRAM, words_of_the_program, write_tokenizer
from test_data import IGNORE, SHAREGPT, chats_as_rows, conversations, encode
from test_saved_chats import CASES, TOOLS, calling, chats, export, prompts_of_training
from test_stage_data import PAIRS, documents

TOKENS = [
    "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<start_of_turn>", "<end_of_turn>",
    "<eos>", "<｜User｜>", "<｜Assistant｜>", "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|im_sep|>", "[INST]",
    "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<think>", "</think>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
]
NAMES = words_of_the_program("template")
ONE_CALL = {"glm4", "glmz1"}
SAVED_ELSEWHERE = {case[1] for case in CASES}  # test_saved_chats.py
ENDS_ONCE = {"glm4", "glmz1", "glm4_moe", "gemma2", "gpt_oss"}


@pytest.fixture(scope="module")
def theirs():
    return llamafactory_data.load()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small tokenizer that has the tokens of all templates, and no chat template."""
    place = tmp_path_factory.mktemp("all") / "tokenizer"
    tokenizer = write_tokenizer(place)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.add_tokens([transformers.AddedToken(token, special=True) for token in TOKENS], special_tokens=True)
    tokenizer.eos_token, tokenizer.chat_template = "<|endoftext|>", None
    tokenizer.save_pretrained(place)
    (place / "chat_template.jinja").unlink()
    return place


def chats_for(template):
    """Roles as LLaMA-Factory calls them. It takes {{idx}} in a question for the turn's number."""
    chats = [chat for chat in conversations() if not any("{{" in message["content"] for message in chat)]
    calls = [{"name": "weather", "arguments": {"place": "Köln \"am\" Rhein", "days": [1, 2.5, None], "when": {"a": True}}},
             {"name": "time", "arguments": {}}]
    for written in (calls[0], calls[1:] if template in ONE_CALL else calls):
        chats.append([("user", "What is it"), ("function", json.dumps(written, ensure_ascii=False)),
                      ("observation", '{"sky": 1}'), ("assistant", "Rain.")])
    begin, close = THOUGHTS.get(template, ("<think>\n", "\n</think>\n\n"))
    thought = f"{begin}Hm: 1 < 2?\n{close}"
    chats.append([("user", "a"), ("assistant", thought + "\nb"), ("user", "c"), ("assistant", thought + "d")])
    chats.append([("user", "a"), ("assistant", thought + "b"), ("user", "c"), ("assistant", "d")])
    return [[message if isinstance(message, dict) else dict(role=message[0], content=message[1]) for message in chat]
            for chat in chats]


THOUGHTS = {"gpt_oss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")}
OURS = {"function": "function_call", "observation": "tool"}


def as_ours(chats):
    return chats_as_rows([[message | dict(role=OURS.get(message["role"], message["role"])) for message in chat]
                          for chat in chats])


def encoder(module, kind, folder, template, **keys):
    arguments = types.SimpleNamespace(**dict(template=template, train_on_prompt=False, tool_format=None, default_system=None,
                                             enable_thinking=True, preserve_thinking=False, mask_history=False,
                                             cutoff_len=1 << 20) | keys)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    templates, processors = module
    template = copy.deepcopy(templates.TEMPLATES[template])
    if isinstance(template, templates.ReasoningTemplate):
        template.enable_thinking = arguments.enable_thinking
        template.preserve_thinking = arguments.preserve_thinking
    if arguments.default_system is not None:
        template.default_system = arguments.default_system
    template.fix_special_tokens(tokenizer)
    return getattr(processors, kind)(template=template, tokenizer=tokenizer, processor=None, data_args=arguments)


def split(chat):
    """System message, if any; the others."""
    return (chat[0]["content"], chat[1:]) if chat[0]["role"] == "system" else ("", chat)


VARIANTS = [{}, {"cutoff_len": 41}, {"mask_history": True}, {"mask_history": True, "cutoff_len": 60},
            {"enable_thinking": False}, {"enable_thinking": False, "mask_history": True}]


@pytest.mark.parametrize("template", NAMES)
def test_answers(template, theirs, folder, tmp_path):
    templates, supervised, _ = theirs
    chats = chats_for(template)
    for variant in VARIANTS:
        if "enable_thinking" in variant and templates.TEMPLATES[template].__class__.__name__ == "Template":
            continue
        encodes = encoder((templates, supervised), "SupervisedDatasetProcessor", folder, template, **variant)
        rows = encode(folder, tmp_path, as_ours(chats), SHAREGPT, template=template, **variant)
        num_same = 0
        for chat, ours in zip(chats, rows, strict=True):
            system, messages = split(copy.deepcopy(chat))
            ids, labels = encodes._encode_data_example(messages[:-1], messages[-1:], system, None, [], [], [])
            if len(labels) > len(ids):
                continue  # it sets an end token's label before a question that was cut to nothing
            assert (ours["input_ids"], ours["labels"]) == (ids, labels), (variant, chat)
            num_same += 1
        assert num_same > 0.9 * len(chats)


@pytest.mark.parametrize("template", NAMES)
def test_pairs(template, theirs, folder, tmp_path):
    templates, _, pairwise = theirs
    chats = [chat for chat in chats_for(template) if not any(message["role"] in OURS for message in chat)]
    rows = [dict(row, chosen=row["messages"].pop(), rejected=dict(role="assistant", content="No, no."))
            for row in as_ours(chats)]
    for cutoff_len in (1 << 20, 40):
        encodes = encoder((templates, pairwise), "PairwiseDatasetProcessor", folder, template, cutoff_len=cutoff_len)
        ours = documents(encode(folder, tmp_path, rows, PAIRS, template=template, stage="dpo", cutoff_len=cutoff_len))
        for chat, row, pair in zip(chats, rows, ours, strict=True):
            system, messages = split(copy.deepcopy(chat))
            wanted = encodes._encode_data_example(messages[:-1], [messages[-1], row["rejected"]], system, None, [], [], [])
            assert [part for document in pair for part in document] == list(wanted), chat


def test_every_name_is_known(theirs, folder, tmp_path):
    """Names that are not supported say so, and what to do; others are no names."""
    known = set(theirs[0].TEMPLATES)
    said = subprocess.run([PROGRAM, "help", "template"], capture_output=True, text=True, check=True).stdout
    unsupported = re.search(r"Known but not supported: (.*)", said).group(1).split(", ")
    assert set(NAMES) | set(unsupported) == known
    rows = as_ours(conversations()[:1])
    with pytest.raises(AssertionError, match="qwen3_6 is known but not supported: leave template out.*; the nearest is qwen3_"):
        encode(folder, tmp_path, rows, SHAREGPT, template="qwen3_6")
    with pytest.raises(AssertionError, match='there is no "vicunia"; the nearest is vicuna'):
        encode(folder, tmp_path, rows, SHAREGPT, template="vicunia")


@pytest.mark.parametrize("template", sorted(ENDS_ONCE))
def test_prompts_are_not_trained_where_they_end_answers(template, folder, tmp_path):
    with pytest.raises(AssertionError, match="train_on_prompt"):
        encode(folder, tmp_path, as_ours(conversations()[:1]), SHAREGPT, template=template, train_on_prompt=True)


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):
    """The smallest model with that tokenizer."""
    place = tmp_path_factory.mktemp("model") / "model"
    shape = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    shape |= dict(vocab_size=len(transformers.AutoTokenizer.from_pretrained(folder)), tie_word_embeddings=True)
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape)).save_pretrained(place)
    shutil.copytree(folder, place, dirs_exist_ok=True)
    return place


# Empty thoughts end with white space, and the answer begins with some: as one text they are other tokens.
JOINED = {"glm4_moe", "glmz1"}


@pytest.mark.parametrize("template", [name for name in NAMES if name not in SAVED_ELSEWHERE])
@pytest.mark.parametrize("keys", [{}, {"enable_thinking": False}], ids=["", "silent"])
def test_prompts_of_saved_models(template, keys, theirs, model, tmp_path):
    """Those of training, by transformers."""
    thinks = theirs[0].TEMPLATES[template].__class__.__name__ != "Template"
    if keys and not thinks:
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(export(model, tmp_path / "saved", template=template, **keys))
    ours, with_calls = calling(has_room_for_results=False)
    number = 1 if template in ONE_CALL else 2
    rows, wanted = chats() + ours[:number], chats() + with_calls[:number]
    for chat, ids in zip(wanted, prompts_of_training(model, tmp_path, rows, template=template, **keys), strict=True):
        rendered = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True, tokenize=True, return_dict=True,
                                                 **keys)["input_ids"]
        assert tokenizer.decode(rendered) == tokenizer.decode(ids), chat
        assert rendered == ids or template in JOINED, chat
    asked = [{"role": "user", "content": "Rain?"}]
    row = {"messages": [*asked, {"role": "assistant", "content": "Yes."}], "tools": TOOLS}

    def render():
        return tokenizer.apply_chat_template(asked, tools=TOOLS, add_generation_prompt=True, tokenize=False, **keys)

    if template == "phi4_mini":
        with pytest.raises(Exception, match="prints no tools"):
            render()
        return
    [sample] = encode(model, tmp_path, [row], {"formatting": "openai"}, template=template, **keys)
    end = max(i for i, label in enumerate(sample["labels"]) if label == IGNORE) + 1
    assert render() == tokenizer.decode(sample["input_ids"][:end])
