"""Long inputs that are made, not kept: nested JSON, YAML, chat templates, tokenizers."""

import json

DEEP = 200_000
NESTED = {
    "deep-lists": "[" * DEEP,
    "closed-lists": "[" * DEEP + "]" * DEEP,
    "deep-objects": '{"a":' * DEEP,
    "closed-objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "some-levels": "[" * 8000 + "]" * 8000,
    "mixed": '[{"a":' * 20_000 + "1" + "}]" * 20_000,
}
# Every reader of JSON has the same door, which sees all of them; the others see that it is used.
FEW = {name: NESTED[name] for name in ("deep-lists", "some-levels", "mixed")}
NUMBERS = {"beyond-double": "1e999", "minus-beyond-double": "-1e999"}


def json_texts(prefix="", key=None, nested=FEW):
    """Values that no parser, copy or destructor may follow to their end; inside an object where `key` is given."""
    texts = {}
    for name, text in (nested | NUMBERS).items():
        texts[name] = prefix + (text if key is None else f'{{"{key}": {text}}}')
    return texts


def yaml_texts(prefix=""):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for i in range(1, 12):
        bomb += f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n"
    texts = NESTED | {
        "indented": "".join(" " * i + "a:\n" for i in range(3000)),
        "dashes": "- " * DEEP,
        "aliases": bomb,
        "long-key": "a" * 1_000_000 + ": 1",
        "many-keys": "".join(f"k{i}: 1\n" for i in range(20_000)),
        "question-marks": "? " * 50_000,
        "anchors": "&a " * 50_000 + "x",
        "quotes": '"' + "\\" * 100_000,
    }
    return {name: prefix + text for name, text in texts.items()}


def deep_templates():
    """Each is one expression, or one block in another, without end."""
    return {
        "nots": "{{ " + "not " * 100_000 + "1 }}",
        "filters": "{{ x" + "|upper" * DEEP + " }}",
        "parentheses": "{{ " + "(" * DEEP + "1" + ")" * DEEP + " }}",
        "brackets": "{{ " + "[" * DEEP + "]" * DEEP + " }}",
        "braces": "{{ " + '{"a":' * DEEP + "1" + "}" * DEEP + " }}",
        "minuses": "{{ " + "-" * DEEP + "1 }}",
        "powers": "{{ " + "2 ** " * DEEP + "2 }}",
        "sums": "{{ " + "1 + " * DEEP + "1 }}",
        "tildes": "{{ " + "1 ~ " * DEEP + "1 }}",
        "attributes": "{{ a" + ".a" * DEEP + " }}",
        "items": "{{ a" + "[0]" * DEEP + " }}",
        "calls": "{{ a" + "()" * DEEP + " }}",
        "choices": "{{ " + "1 if 1 else " * 100_000 + "1 }}",
        "comparisons": "{{ " + "1 < " * DEEP + "1 }}",
        "ifs": "{% if 1 %}" * 20_000 + "{% endif %}" * 20_000,
        "fors": "{% for i in [1] %}" * 5000 + "{% endfor %}" * 5000,
        "elifs": "{% if 0 %}" + "{% elif 0 %}" * 20_000 + "{% endif %}",
        "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "recursive-loop": "{% for m in [[1]] recursive %}{{ loop([m]) }}{% endfor %}",
        "cycle": "{% set n = namespace(a=1) %}{% set n.a = n %}{{ n }}",
        "cycle-of-lists": "{% set n = namespace(a=[]) %}{% set n.a = [n, n] %}{{ n.a }}",
    }


def large_templates():
    """Each asks for much work, text or memory in few words, or is slow to read."""
    loop, end = "{% for i in range(10000) %}", "{% endfor %}"
    double = "{% set n = namespace(s=START) %}{% for i in range(60) %}{% set n.s = n.s OP n.s %}{% endfor %}"
    return {
        "blocks-open": "{%" * 60_000,
        "blocks-and-blanks": "{% " * 40_000,
        "comments": "{#" * 60_000,
        "expressions-open": "{{" * 60_000,
        "generations": "{% generation %}" * 8000,
        "generation-pairs": "{% generation %}{% endgeneration %}" * 4000,
        "lines": "\n" * 200_000 + "{{ 1 1 }}",
        "fuel": loop * 3 + "x" + end * 3,
        "fuel-without-output": loop * 3 + "{% set a = 1 %}" + end * 3,
        "output": loop * 2 + "x" * 1000 + end * 2,
        "doubling": double.replace("START", "'aaaaaaaa'").replace("OP", "~"),
        "doubling-lists": double.replace("START", "[1, 1, 1]").replace("OP", "+"),
        "repeated": "{{ 'a' * 10000000000 }}",
        "repeated-list": "{{ [1] * 10000000000 }}",
        "range": "{{ range(10000000000)|list }}",
        "range-length": "{{ range(100000000000)|length }}",
        "padded": "{{ '%1000000000s' % 'a' }}",
        "padded-filter": "{{ '%1000000000d'|format(1) }}",
        "precise": "{{ '%.1000000000f'|format(1.5) }}",
        "formatted": "{{ '{:>1000000000}'.format('a') }}",
        "indented": "{{ 'x\\ny'|indent(1000000000) }}",
        "centered": "{{ 'a'|center(1000000000) }}",
        "justified": "{{ 'a'.ljust(1000000000) }}",
        "power": "{{ 10 ** 10 ** 10 }}",
        "tojson-indent": "{{ messages|tojson(indent=1000000000) }}",
        "replaced": "{% set n = 'a' * 10000 %}{{ n.replace('', n).replace('', n).replace('', n) }}",
        "joined": "{{ range(100000)|join('x' * 100000) }}",
        "times": "{{ strftime_now('%' * 100000) }}",
        "wide-time": "{{ strftime_now('%1000000000Y') }}",
        "message": "{{ raise_exception('a' * 1000000) }}",
        "batch": "{{ [1]|batch(10000000000, 1)|list }}",
        "slice": "{{ [1]|slice(10000000000)|list }}",
        "sorted": "{{ range(10000000)|sort }}",
        "rounded": "{{ 1.5|round(400) }}",
    }


BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}


def tokenizer_json(**changes):
    values = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
              "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": BPE}
    return json.dumps(values | changes)


def pipelines():
    """tokenizer.json whose steps before and after the model ask for what cannot be."""
    def precompiled(charsmap):
        return tokenizer_json(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap})

    def split(pattern):
        return tokenizer_json(
            pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})

    def padding(**changes):
        return tokenizer_json(padding={"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
                                       "pad_id": 0, "pad_type_id": 0, "pad_token": "a"} | changes)

    def truncation(length, stride):
        return tokenizer_json(truncation={"direction": "Right", "max_length": length, "strategy": "LongestFirst",
                                          "stride": stride})

    empty = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}], "pair": [],
                "special_tokens": {}}
    deep = '"normalizer": ' + '{"type": "Sequence", "normalizers": [' * 20_000
    return {
        "charsmap": precompiled("AAAA"),
        "charsmap-lies": precompiled("/////wAAAAA="),
        "charsmap-empty": precompiled(""),
        "fixed-length-0": tokenizer_json(pre_tokenizer={"type": "FixedLength", "length": 0}),
        "empty-replace": tokenizer_json(normalizer=empty),
        "empty-replace-regex": tokenizer_json(normalizer=empty | {"pattern": {"Regex": ""}}),
        "empty-replace-decoder": tokenizer_json(decoder=empty),
        "regex-backtracks": split("(a+)+$") + "\n%%\n" + "a" * 5000 + "b",
        "regex-empty": split(""),
        "regex-broken": split("("),
        "regex-deep": split("(" * 20_000 + ")" * 20_000),
        "regex-repeats": split("((a{1000}){1000}){1000}"),
        "padding": padding(strategy={"Fixed": 1_000_000_000}),
        "padding-multiple": padding(pad_to_multiple_of=1_000_000_000),
        "padding-multiple-0": padding(pad_to_multiple_of=0),
        "truncation-0": truncation(0, 0),
        "truncation-stride": truncation(2, 5),
        "deep-sequence": tokenizer_json(normalizer=0).replace('"normalizer": 0', deep),
        "template-of-nothing": tokenizer_json(post_processor=template),
        "long-text": tokenizer_json(pre_tokenizer=byte_level, decoder=byte_level) + "\n%%\n" + "ab " * 3000,
    }


def vocabularies():
    """tokenizer.json whose model or added tokens are none."""
    def added(**changes):
        return tokenizer_json(added_tokens=[{"id": 3, "content": "x", "single_word": False, "lstrip": False,
                                             "rstrip": False, "normalized": False, "special": True} | changes])

    def bpe(**changes):
        return tokenizer_json(model=BPE | changes)

    def unigram(unknown, vocab):
        return tokenizer_json(model={"type": "Unigram", "unk_id": unknown, "vocab": vocab})

    words = {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "", "max_input_chars_per_word": 0,
             "vocab": {}}
    return {
        "dropout": bpe(dropout=0.5),
        "dropout-2": bpe(dropout=2.0),
        "id-beyond-31-bits": bpe(vocab={"a": 0, "b": 1, "ab": 3_000_000_000}),
        "merge-of-nothing": bpe(merges=[["x", "y"]]),
        "merge-empty": bpe(merges=[["", ""]]),
        "added-empty": added(content=""),
        "added-id": added(id=4294967295),
        "added-negative": added(id=-1),
        "unigram-unknown": unigram(9, [["a", 0.0]]),
        "unigram-empty": unigram(None, []),
        "unigram-scores": unigram(0, [["", -1e308], ["a", 1e308]]),
        "wordpiece-no-unknown": tokenizer_json(model=words),
    } | {f"model-{name}": '{"model": ' + text for name, text in FEW.items()}
