"""A saved model chats as it was trained: by transformers, without a key of ours.

A base model has no chat template, and an end token that ends texts, not turns.
"""

import json
import pathlib
import re
import shutil
import subprocess

import pytest
import torch
import transformers
from conftest import PROGRAM, Running, add_dataset, run_to_end, settings_of, write_model, write_tokenizer
from test_data import IGNORE, SHAREGPT, chats_as_rows, encode
from test_text import fetch

# Begin with nothing that tokenizers join with what is before it.
WORDS = ["Say it", "No, I shall not: 12.5 €", "日本語 and 🙂", "two\nlines", "It's {{odd}} 'quoted' \\n", "x"]


def chats(lead=""):
    """Of one and of several turns, with and without a system message. `lead` begins each message but the first."""
    whole = []
    for system in (None, "Be \"brief\".\nIt's short."):
        for turns in (1, 2, 3):
            chat = [("system", system)] if system else []
            for i in range(turns):
                chat += [("user", lead + WORDS[i]), ("assistant", lead + WORDS[-1 - i])]
            whole.append([{"role": role, "content": content} for role, content in chat])
    return whole


def thoughtful(chats):
    """The first answer begins with thoughts."""
    for chat in chats:
        answer = next(message for message in chat if message["role"] == "assistant")
        answer["content"] = "<think>\nHm: 1 < 2?\n</think>\n\n" + answer["content"]
    return chats


def calling(has_room_for_results):
    """Chats with one call of a function and with two: as transformers takes them, and as rows of training. The second has
    a result of each call where the template has room for several."""
    calls = [{"name": "weather", "arguments": {"place": "Köln \"am\" Rhein", "days": [1, 2.5, None]}},
             {"name": "time", "arguments": {}}]
    ours, theirs = [], []
    for number in (1, 2):
        head, tail = {"role": "user", "content": "What is it"}, {"role": "assistant", "content": "Rain."}
        results = [{"role": "tool", "content": "{\"sky\": 1}"}] * (number if has_room_for_results else 1)
        theirs.append([head, {"role": "assistant", "tool_calls": [{"type": "function", "function": call}
                                                                   for call in calls[:number]]},
                       *results, tail])
        written = json.dumps(calls[:number] if number > 1 else calls[0], ensure_ascii=False)
        ours.append([head, {"role": "function_call", "content": written}, *results, tail])
    return ours, theirs


END_OF_TEXT = {"qwen2_5": "<|endoftext|>", "llama3_2": "<|end_of_text|>"}


@pytest.fixture(scope="module")
def real_models(tmp_path_factory):
    """real_models(name, is_base): the smallest model with a real tokenizer. Base models have no chat template, and
    an end token that ends texts."""
    place, known = tmp_path_factory.mktemp("real"), set()

    def make(name, is_base=True):
        folder = place / f"{name}-{'base' if is_base else 'chat'}"
        if folder not in known:
            known.add(folder)
            make_model(folder, name, is_base)
        return folder

    return make


def make_model(folder, name, is_base):
    folder.mkdir()
    for path in pathlib.Path(fetch(name)).iterdir():
        if path.name.startswith(("tokenizer", "special")):
            shutil.copy(path, folder)
    if is_base:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        del config["chat_template"]
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": END_OF_TEXT[name]}))
    shape = dict(vocab_size=151936, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                 num_key_value_heads=1, tie_word_embeddings=True)
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape)).save_pretrained(folder)


def export(folder, output, **keys):
    """`longspan export` of a model as it is: its files as training with the same keys saves them."""
    config = output.with_suffix(".json")
    config.write_text(json.dumps(dict(model_name_or_path=str(folder), export_dir=str(output)) | keys))
    ran = subprocess.run([PROGRAM, "export", config], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return output


def prompts_of_training(folder, place, rows, **keys):
    """The ids before the last answer."""
    prompts = []
    for sample in encode(folder, place, chats_as_rows(rows), **keys):
        ids, labels = sample["input_ids"], sample["labels"]
        end = max(i for i, label in enumerate(labels) if label == IGNORE) + 1
        prompts.append(ids[:end])
    return prompts


CASES = [
    # tokenizer, template, the tokens that end an answer, what each message begins with, keys
    ("qwen2_5", "qwen", ["<|im_end|>"], "", {}),
    ("qwen2_5", "qwen", ["<|im_end|>"], "", {"default_system": "It's 'mine'.\n\\"}),
    ("qwen2_5", "chatml", ["<|im_end|>", "<|im_start|>"], "", {}),
    ("qwen2_5", "qwen3", ["<|im_end|>"], "", {}),
    ("qwen2_5", "qwen3", ["<|im_end|>"], "", {"mask_history": True}),
    ("qwen2_5", "qwen3", ["<|im_end|>"], "", {"enable_thinking": False}),
    ("qwen2_5", "qwen3", ["<|im_end|>"], "", {"enable_thinking": False, "mask_history": True}),
    ("qwen2_5", "qwen3_nothink", ["<|im_end|>"], "", {}),
    # Their turns are told apart by text alone: messages must not begin with what would be joined to it.
    ("qwen2_5", "default", ["<|endoftext|>"], " ", {}),
    ("qwen2_5", "empty", ["<|endoftext|>"], " ", {}),
    ("llama3_2", "llama3", ["<|eot_id|>", "<|eom_id|>"], "", {}),
    ("llama3_2", "mistral", ["<|end_of_text|>"], "", {}),
]


@pytest.mark.parametrize("name, template, ends, lead, keys", CASES, ids=[f"{case[1]}-{'-'.join(case[4])}" for case in CASES])
def test_prompts_are_those_of_training(name, template, ends, lead, keys, real_models, tmp_path):
    base = real_models(name)
    rows = chats(lead)
    if template == "qwen3":
        rows += thoughtful(chats())
    saved = export(base, tmp_path / "saved", template=template, **keys)
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    expected = prompts_of_training(base, tmp_path, rows, template=template, **keys)
    for chat, ids in zip(rows, expected):
        rendered = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True, tokenize=True, return_dict=True)
        assert rendered["input_ids"] == ids, (tokenizer.decode(rendered["input_ids"]), tokenizer.decode(ids))
    # Where text alone tells turns apart, a token may join a call with what is before it: the text is the same.
    joins = template in ("default", "empty", "mistral")
    ours, theirs = calling(has_room_for_results=template not in ("default", "empty"))
    for chat, ids in zip(theirs, prompts_of_training(base, tmp_path, ours, template=template, **keys)):
        rendered = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True, tokenize=True, return_dict=True)
        texts = tokenizer.decode(rendered["input_ids"]), tokenizer.decode(ids)
        assert texts[0] == texts[1] and (joins or rendered["input_ids"] == ids), texts
    # One answer is asked for at a time, whatever comes before it.
    def text_of(roles, **more):
        chat = [{"role": role, "content": "x"} for role in roles]
        return tokenizer.apply_chat_template(chat, tokenize=False, **more)
    asks = text_of(["user"], add_generation_prompt=True)[len(text_of(["user"])):]
    for roles in (["user", "user"], ["user", "assistant", "user", "user"]):
        longer, shorter = text_of(roles), text_of(roles[:-1])
        assert longer.startswith(shorter) and (not asks or not longer[len(shorter):].startswith(asks))
        assert text_of(roles, add_generation_prompt=True) == longer + asks
    assert tokenizer.eos_token == ends[0]
    stops = transformers.GenerationConfig.from_pretrained(saved).eos_token_id
    stops = stops if isinstance(stops, list) else [stops]
    assert {tokenizer.convert_tokens_to_ids(end) for end in ends} <= set(stops)
    assert json.loads((saved / "config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id
    assert tokenizer.pad_token is not None


ARGUMENTS = {"place": {"type": "string", "enum": ["Köln", "Bonn"]}, "days": {"description": "which", "items": {"type": "number"}}}
TOOLS = [{"type": "function", "function": {"name": name, "description": "Ä \"b\" <c>", "parameters": {
    "z": 1.5, "a": [], "required": ["place"], "properties": ARGUMENTS}}} for name in ("weather", "time")]


@pytest.mark.parametrize("template, keys", [("qwen", {}), ("qwen3", {}), ("qwen3", {"mask_history": True}),
                                            ("qwen3", {"enable_thinking": False}), ("mistral", {}), ("llama3", {}),
                                            ("qwen3_5", {}), ("chatml", {})])
def test_tools_and_thoughts_are_those_of_training(template, keys, real_models, tmp_path):
    """Beside the text of messages: OpenAI's tools, and reasoning_content before calls and before an answer."""
    base = real_models("llama3_2" if template in ("mistral", "llama3") else "qwen2_5")
    tokenizer = transformers.AutoTokenizer.from_pretrained(export(base, tmp_path / "saved", template=template, **keys))
    _, chats_with_calls = calling(has_room_for_results=True)
    rows = []
    for chat in chats_with_calls:
        call = chat[1] | {"content": None}
        thinks = template in ("qwen3", "qwen3_5")
        if thinks:
            call["reasoning_content"] = "Hm,\nwhich?"
        answer = {"role": "assistant", "content": "Yes."} | ({"reasoning_content": "oh"} if thinks else {})
        rows += [[chat[0], call, *chat[2:]], [chat[0], answer, chat[0], call | {"content": "I look."}, *chat[2:]]]
    samples = encode(base, tmp_path, [{"messages": chat, "tools": TOOLS} for chat in rows], {"formatting": "openai"},
                     template=template, **keys)
    for chat, sample in zip(rows, samples, strict=True):
        end = max(i for i, label in enumerate(sample["labels"]) if label == IGNORE) + 1
        rendered = tokenizer.apply_chat_template(chat[:-1], tools=TOOLS, add_generation_prompt=True, tokenize=False)
        assert rendered == tokenizer.decode(sample["input_ids"][:end])


@pytest.mark.parametrize("template", ["default", "empty"])
def test_tokens_that_join_messages_are_warned_of(template, real_models, tmp_path):
    """Without what keeps them apart above. The text is that of training, and of as many chats as the tokens differ in a
    warning speaks when training starts."""
    base, rows = real_models("qwen2_5"), chats()
    tokenizer = transformers.AutoTokenizer.from_pretrained(export(base, tmp_path / "saved", template=template))
    joined = []
    for chat, ids in zip(rows, prompts_of_training(base, tmp_path, rows, template=template)):
        rendered = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True, tokenize=True, return_dict=True)
        assert tokenizer.decode(rendered["input_ids"]) == tokenizer.decode(ids)
        joined.append(rendered["input_ids"] != ids)
    assert any(joined) and not joined[0]  # one question alone is joined to nothing
    data = tmp_path / "data"
    for name, some in (("all", rows), ("first", rows[:1])):
        add_dataset(data, name, chats_as_rows(some), **SHAREGPT)
        settings = settings_of(str(base), str(data), tmp_path / name, template=template, dataset=name, max_steps=1,
                               save_strategy="no")
        run = Running(settings).wait()
        assert run.status == 0, run.text
        said = re.findall(r"warning: .* In (\d+) of the first (\d+) chats?, a token joins the end of a message", run.text)
        assert said == ([(str(sum(joined)), str(len(rows)))] if name == "all" else []), run.text


def test_an_own_template_that_says_the_same_stays(real_models, tmp_path):
    """It knows more, of tools for example. One that says something else goes."""
    base = real_models("qwen2_5", is_base=False)
    own = transformers.AutoTokenizer.from_pretrained(base).chat_template
    for template, stays in (("qwen", True), ("chatml", False), (None, True)):
        saved = export(base, tmp_path / str(template), **({"template": template} if template else {}))
        assert (transformers.AutoTokenizer.from_pretrained(saved).chat_template == own) == stays, template
    untouched = (tmp_path / "None" / "tokenizer_config.json").read_bytes()
    assert untouched == (base / "tokenizer_config.json").read_bytes()
    thinking = real_models("qwen3", is_base=False)
    own = transformers.AutoTokenizer.from_pretrained(thinking).chat_template
    saved = export(thinking, tmp_path / "thinks", template="qwen3")
    assert transformers.AutoTokenizer.from_pretrained(saved).chat_template == own
    # A model that was trained not to think does not when nobody asks.
    silent = export(thinking, tmp_path / "silent", template="qwen3", enable_thinking=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(silent)
    rows = chats()[:1]
    keys = dict(template="qwen3", enable_thinking=False)
    assert tokenizer.apply_chat_template(rows[0][:-1], add_generation_prompt=True, return_dict=True)["input_ids"] == (
        prompts_of_training(thinking, tmp_path, rows, **keys)[0]
    )
    assert tokenizer.chat_template.endswith(own)


def test_a_template_of_processors(real_models, tmp_path):
    """chat_template.json is the model's own where the tokenizer has no other."""
    known, base, both = real_models("qwen2_5", is_base=False), tmp_path / "base", tmp_path / "both"
    own = transformers.AutoTokenizer.from_pretrained(known).chat_template
    shutil.copytree(real_models("qwen2_5"), base)
    (base / "chat_template.json").write_text(json.dumps({"chat_template": own}))
    shutil.copytree(known, both)
    (both / "chat_template.json").write_text(json.dumps({"chat_template": "of somebody else"}))
    rows = chats_as_rows(chats())
    expected = encode(known, tmp_path, rows)
    assert encode(base, tmp_path, rows) == expected and encode(both, tmp_path, rows) == expected
    # Saved, it is where it was. Where a named template says the same, the tokenizer gets it, as others look there.
    saved = export(base, tmp_path / "unnamed")
    assert (saved / "chat_template.json").read_bytes() == (base / "chat_template.json").read_bytes()
    for template in ("qwen", "chatml"):
        for model in (base, both):
            saved = export(model, tmp_path / f"{template}-{model.name}", template=template)
            assert not (saved / "chat_template.json").exists() or model is both and template == "qwen"
            found = transformers.AutoTokenizer.from_pretrained(saved).chat_template
            assert (found == own) == (template == "qwen")


SAYS = "the answer is always this"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model whose end token ends texts, as a base model's; data of one answer."""
    place = tmp_path_factory.mktemp("chats")
    folder = place / "base"
    write_model(folder, "qwen2", bos_token_id=0, eos_token_id=0, pad_token_id=None)
    fast = write_tokenizer(folder)
    fast.chat_template, fast.eos_token, fast.pad_token = None, "<|endoftext|>", None
    for path in folder.glob("*template*"):
        path.unlink()
    fast.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    add_dataset(place / "data", "chats", [
        {"instruction": text, "input": "", "output": SAYS} for text in ("who", "what now", "where is it", "why")
    ])
    return str(folder), str(place / "data")


def trained(base, output, num_ranks=1, **keys):
    settings = settings_of(*base, output, template="chatml", learning_rate=5e-3, max_steps=40)
    run = run_to_end(settings | keys, num_ranks)
    return run.output_dir


def answer_of(model, tokenizer):
    chat = [{"role": "user", "content": "what now"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**inputs, max_new_tokens=60, do_sample=False)[0, inputs["input_ids"].shape[1]:]
    return tokenizer.decode(ids)


def test_a_trained_base_model_stops_at_the_end_of_its_turn(base, tmp_path):
    output = trained(base, tmp_path / "run", save_strategy="steps", save_steps=40)
    for folder in (output, output / "checkpoint-40"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert answer_of(model, tokenizer) == SAYS + "<|im_end|>"
        # The token that ended texts still does, and is no turn's end.
        ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")]
        assert model.generation_config.eos_token_id == ends
        assert model.config.eos_token_id == ends[0] and model.config.pad_token_id is None
        assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    # It trains on by its own template, on the same rows.
    rows = [encode(folder, tmp_path, chats_as_rows(chats()), **keys)
            for folder, keys in ((base[0], {"template": "chatml"}), (output, {}))]
    for named, own in zip(*rows):
        assert named["input_ids"] == own["input_ids"]


# Templates of a model's own: one ends its turns, the other leaves that to the marker of the next role, as GLM-4's.
OWN_TEMPLATES = {
    "ends": ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "<|im_end|>"),
    "marker": ("{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}\n{{ m.content }}"
               "{% endfor %}{% if add_generation_prompt %}<|im_end|>{% endif %}", "<|im_start|>"),
}


@pytest.mark.parametrize("name", OWN_TEMPLATES)
def test_an_answer_by_a_models_own_template_stops(name, base, tmp_path):
    """The files of the base model name no end of a turn; the first of two answers is asked for."""
    template, end = OWN_TEMPLATES[name]
    folder = tmp_path / "model"
    shutil.copytree(base[0], folder)
    (folder / "chat_template.jinja").write_text(template)
    rows = [{"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": SAYS}] * 2}
            for text in ("who", "what now", "where is it", "why")]
    add_dataset(tmp_path / "data", "chats", rows, formatting="sharegpt")
    output = run_to_end(settings_of(str(folder), str(tmp_path / "data"), tmp_path / "run",
                                    learning_rate=5e-3, max_steps=40)).output_dir
    model = transformers.AutoModelForCausalLM.from_pretrained(output)
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    assert answer_of(model, tokenizer).lstrip() == SAYS + end


@pytest.mark.parametrize("keys, num_ranks", [({}, 1), ({"zero_stage": 3}, 2)], ids=["whole", "sharded"])
def test_an_adapter_and_its_export(base, keys, num_ranks, tmp_path):
    from peft import PeftModel

    lora = dict(finetuning_type="lora", lora_rank=32, learning_rate=5e-3, max_steps=80,
                per_device_train_batch_size=4 // num_ranks, gradient_accumulation_steps=1)
    output = trained(base, tmp_path / "lora", num_ranks, **lora, **keys)
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    model = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base[0]), output)
    model.generation_config = transformers.GenerationConfig.from_pretrained(output)
    assert answer_of(model, tokenizer) == SAYS + "<|im_end|>"
    merged = export(pathlib.Path(base[0]), tmp_path / "merged", adapter_name_or_path=str(output))
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    model = transformers.AutoModelForCausalLM.from_pretrained(merged)
    assert answer_of(model, tokenizer) == SAYS + "<|im_end|>"


def test_a_sharded_model(base, tmp_path):
    """Each process writes a part of the model; the files beside are those of a whole one."""
    one = trained(base, tmp_path / "one", max_steps=1)
    two = trained(base, tmp_path / "two", 2, max_steps=1, zero_stage=3, gradient_accumulation_steps=2)
    for name in ("tokenizer_config.json", "generation_config.json", "config.json"):
        assert (one / name).read_text() == (two / name).read_text()


def test_a_chat_template_of_an_earlier_run_goes(base, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    (output / "chat_template.jinja").write_text("old")
    trained(base, output, max_steps=1, overwrite_output_dir=True)
    assert transformers.AutoTokenizer.from_pretrained(output).chat_template != "old"
