"""Words for libFuzzer, by reader: those of its seeds, and what its language is made of."""

import re

JSON = ["{", "}", "[", "]", ",", ":", "null", "true", "false", "0", "-1", "0.5", "1e999", "-1e999", "5e-324", "1e18",
        "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551615", '""', '"\\u0000"',
        '"\\ud800"', "[[[[[[[[[[[[[[[[", '{"a":{"a":{"a":{"a":', "\ufeff"]
YAML = ["\n", ": ", "- ", "  ", "&a ", "*a", "<<: *a", "!!str ", "|\n", ">\n", "'", '"', "{", "}", "[", "]", "#", "---\n", "...\n",
        "? ", "%YAML 1.2\n", ".inf", ".nan", "0x1F", "0o17", "1e18", "1e-4", "-1", "null", "~", "yes", "no", "9223372036854775807"]
JINJA = ["{{ ", " }}", "{% ", " %}", "{# ", " #}", "{%- ", " -%}", "{% if ", "{% else %}", "{% elif ", "{% endif %}", "{% for ",
         " in ", "{% endfor %}", "{% set ", "{% endset %}", "{% macro ", "{% endmacro %}", "{% call ", "{% endcall %}",
         "{% filter ", "{% endfilter %}", "{% generation %}", "{% endgeneration %}", "{% raw %}", "{% endraw %}", "{% break %}",
         "{% continue %}", "{% include ", "{% import ", "{% extends ", "{% block ", "namespace(", "range(", "loop.index0",
         "loop.previtem", "loop(", " recursive", "messages", "message", "['content']", "['role']", ".split(", ".strip(", ".join(",
         ".replace(", ".startswith(", ".format(", ".items()", "|tojson", "|tojson(indent=", "|trim", "|length", "|list", "|join",
         "|indent(", "|format(", "|map(attribute=", "|selectattr(", "|groupby(", "|batch(", "|sort", "|unique", "|string", "|int",
         "|default(", "|reverse", "|first", "|last", "|slice(", "raise_exception(", "strftime_now(", " is defined", " is none",
         " not ", " and ", " or ", " if ", " else ", "~", "**", "//", "%", "[::-1]", "[1:]", "*1000000", "(", ")", "loop_controls",
         "cycler(", "joiner(", "dict(", "lipsum(", "debug()"]
NUMBERS = ["0", "-1", "1", "4294967295", "2147483648", "9223372036854775808", "1e18", "0.5", "99999999999999999999"]
TOKENIZER = ["Sequence", "Precompiled", "precompiled_charsmap", "FixedLength", "length", "Replace", "pattern", "String", "Regex",
             "content", "behavior", "Isolated", "invert", "Split", "ByteLevel", "add_prefix_space", "trim_offsets", "use_regex",
             "Metaspace", "replacement", "prepend_scheme", "NFC", "NFKC", "Lowercase", "Strip", "StripAccents", "Prepend", "BPE",
             "Unigram", "WordPiece", "WordLevel", "vocab", "merges", "unk_token", "unk_id", "dropout", "byte_fallback", "fuse_unk",
             "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix", "max_input_chars_per_word", "post_processor",
             "TemplateProcessing", "single", "pair", "special_tokens", "SpecialToken", "type_id", "ByteFallback", "Fuse", "CTC",
             "truncation", "max_length", "strategy", "LongestFirst", "stride", "direction", "padding", "Fixed", "pad_to_multiple_of",
             "added_tokens", "single_word", "lstrip", "rstrip", "normalized", "special", "BertNormalizer", "BertPreTokenizer",
             "Digits", "individual_digits", "Punctuation", "UnicodeScripts", "Whitespace", "CharDelimiterSplit", "(?=a)", "(a+)+$"]

MESSAGES = ["messages", "role", "content", "user", "assistant", "tool", "system", "developer", "function", "tool_calls",
            "function_call", "arguments", "name", "id", "type", "text", "tool_call_id", "reasoning_content", "thinking", "reasoning",
            "weight", "train", "tools", "parameters", '"{\\"a\\": 1}"', "<think>\n", "\n</think>\n\n"]

CSV = [",", '"', '""', "\n", "\r\n", "\r", " ", "\t", "\ufeff", "NA", "None", "nan", "True", "false", "-1", "1e5", ".5", "inf", "\x00"]

COLUMNS = ["PAR1", "ARROW1\x00\x00", "\x15\x00\x15", ",\x15", "\x00\x00\x00\x01", "arrow.json"]

ROLLOUTS = ["id", "group", "parent", "token_ids", "mask", "prompt_ids", "completion_ids", "logprobs", "teacher_logprobs", "reward",
            "rewards", "advantage", "policy_version", "truncated", "finish_reason", "length", "stop", "tool_calls", "prompt",
            "completion", "messages", "tools", "NaN", "-Infinity", "\n{"]

OF_READERS = {
    "conversations": JSON + MESSAGES + CSV, "stops_at_bad_rows": JSON + MESSAGES, "examples": JSON + MESSAGES,
    "prompt_files": JSON + MESSAGES + CSV, "row_files": JSON + CSV + COLUMNS, "csv": CSV, "columns": COLUMNS,
    "known_columns": JSON + MESSAGES + CSV + ["completion", "chosen", "rejected", "label", "conversations", "from", "value"],
    "rollouts": JSON + MESSAGES + ROLLOUTS, "completions": JSON + ROLLOUTS + ["choices", "token_logprobs"],
    "config": YAML + JSON, "run_rows": YAML, "overrides": YAML + ["=", "--"], "deepspeed": JSON, "yaml": YAML,
    "options": ["--", "=", ",", "\n"] + NUMBERS, "generation_arguments": ["--", "=", "\n", "true", "false"] + NUMBERS,
    "launcher_variables": ["=", "\n", "[", "]", "-", ",", "True"] + NUMBERS, "beats": ["\n%%\n", "\n"] + NUMBERS,
    "chat_template": JINJA, "chat_variables": JINJA + JSON + ["\n%%\n"], "tokenizer": JSON + TOKENIZER + ["\n%%\n"],
    "tokenizer_config": JSON + JINJA + ["\n%%\n"], "assistant": JSON + JINJA,
    "model_template": JSON + ["\n0", "\n1", "\n2", "\n3", "\n4", "\n5", "<think>", "</think>", "<|im_end|>"],
    "named_templates": JSON + ["\n0", "\n1", "\n2", "\n3", "\n4", "\n5", "<think>", "</think>", "<|im_end|>"],
    "terminal_text": ["\x1b[", "\x1b]0;", "\x07", "\u009b", "\r", "\x00"],
    "safetensors": JSON + ["F32", "F16", "BF16", "F64", "I32", "I64", "BOOL", "F8_E4M3", "__metadata__"],
    "fp8_weights": JSON + ["F32", "BF16", "U8", "F8_E4M3", "_scale_inv"],
    "gptq_weights": JSON + ["F32", "F16", "I32", ".qweight", ".qzeros", ".scales", ".g_idx"],
    "awq_weights": JSON + ["F32", "F16", "I32", ".qweight", ".qzeros", ".scales"],
    "quantization_keys": JSON + ["bits", "w_bit", "group_size", "q_group_size", "checkpoint_format", "version", "gptq_v2", "gemm",
                                 "modules_to_not_convert", "modules_in_block_to_quantize", "zero_point", "dynamic", "sym"],
    "mxfp4_weights": JSON + ["F32", "BF16", "U8", "I8", "_blocks", "_scales"],
    "pictures": ["IHDR", "PLTE", "tRNS", "IDAT", "IEND", "acTL", "fcTL", "fdAT", "eXIf", "iTXt", "zTXt", "gAMA", "sBIT", "JFIF\x00",
                 "Exif\x00\x00", "II*\x00", "MM\x00*", "\x01\x12\x00\x03", "\x12\x01\x03\x00", "Adobe", "XML:com.adobe.xmp",
                 "tiff:Orientation", "RIFF", "WEBP", "VP8 ", "VP8L", "VP8X", "ALPH", "ANIM", "ANMF", "GIF87a", "GIF89a",
                 "NETSCAPE2.0", "!\x0b", ",\x00\x00", "BM", "(\x00\x00\x00", "|\x00\x00\x00", "\x00\x00\x00\x01", "\x7f"],
    "picture_processor": JSON + ["\n%%\n"],
    "videos": ["moov", "trak", "stbl", "stsz", "stsc", "stts", "stco", "co64", "ctts", "elst", "mdat", "moof", "trun", "avc1", "avcC",
               "mp4v", "dref", "url ", "alis", "rmra", "RIFF", "AVI ", "strf", "strh", "idx1", "00dc", "GIF89a", "webm"],
    "key_names": [], "cpu_variable": [], "decoded_ids": [], "encoded_text": [], "event_files": [],
}


def escaped(word):
    """As libFuzzer reads it: printable characters, the rest by their codes."""
    return "".join(chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\x{byte:02x}" for byte in word)


def for_reader(name, seeds):
    """A dictionary file. Readers that are not named above read JSON."""
    words = {word.encode() for word in OF_READERS.get(name, JSON)}
    for seed in seeds:
        if seed.stat().st_size > 20_000:
            continue
        content = seed.read_bytes()
        words |= set(re.findall(rb'"[^"\\\n]{1,40}"', content)) | set(re.findall(rb"[A-Za-z_][\w.]{2,40}", content))
    lines = [f'"{escaped(word)}"' for word in sorted(words) if word]
    return ("\n".join(lines) + "\n").encode()
