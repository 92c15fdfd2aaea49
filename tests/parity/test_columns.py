"""Files of columns (parquet, Arrow), compressed files, folders, patterns, and data sets without an entry.

Records are compared with those of Hugging Face datasets, with which LLaMA-Factory reads files; random tables with pyarrow, with
which datasets reads them. Data sets without an entry are compared with the same rows as messages in a jsonl file.
"""

import gzip
import json
import math
import random

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import trl
from probes import data_probe
from test_csv import encode
from test_text import fetch

zstd = pa.Codec("zstd")
CHATS = [
    [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5 \u2028 \"five\"\n日本 🙂"}],
    [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
     {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Bye"}],
]
CALLS = [[{"role": "user", "content": "Weather in Bern?"},
          {"role": "assistant", "content": "I look.", "reasoning_content": "a tool", "tool_calls": [
              {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": '{"place": "Bern"}'}}]},
          {"role": "tool", "content": "sunny", "tool_call_id": "c1"}, {"role": "assistant", "content": "It is sunny."}]]


def write_stream(table, path, **options):
    with pa.ipc.new_stream(path, table.schema, **options) as stream:
        stream.write_table(table, max_chunksize=3)


def write_file(table, path):
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=2)


WRITERS = {
    "rows.parquet": lambda table, path: pa.parquet.write_table(table, path, row_group_size=2),
    "snappy.parquet": lambda table, path: pa.parquet.write_table(table, path, compression="snappy", data_page_version="2.0"),
    "gzip.parquet": lambda table, path: pa.parquet.write_table(table, path, compression="gzip", use_dictionary=False),
    "zstd.parquet": lambda table, path: pa.parquet.write_table(table, path, compression="zstd", data_page_size=20),
    "stream.arrow": write_stream,
    "file.arrow": write_file,
}


def strict(value):
    """JSON's values: what has none is null."""
    if isinstance(value, dict):
        return {key: strict(part) for key, part in value.items()}
    if isinstance(value, list):
        return [strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text(rows):
    """With the order of keys, and with types: 1 is neither 1.0 nor true."""
    return json.dumps(strict(rows))


def loaded(folder, name):
    builder = "arrow" if name.endswith(".arrow") else "parquet"
    return list(datasets.load_dataset(builder, data_files=[str(folder / name)], split="train", cache_dir=str(folder / "cache")))


@pytest.mark.parametrize("name", WRITERS)
def test_records_are_those_of_datasets(tmp_path, name):
    rows = [{"messages": chat, "n": i, "share": i / 3, "good": i % 2 == 0, "none": None, "tags": ["a", None, ""][:i],
             "deep": [[{"x": [i]}], []], "text": "" if i else None} for i, chat in enumerate(CHATS + CALLS)]
    WRITERS[name](pa.Table.from_pylist(rows + rows), tmp_path / name)
    expected = loaded(tmp_path, name)
    assert expected[2]["messages"][1]["tool_calls"][0]["function"]["name"] == "weather"
    rows, notes = data_probe.rows(tmp_path / name)
    assert text(rows) == text(expected) and notes == []


def test_records_that_datasets_saves(tmp_path):
    """Its own files: to_parquet and save_to_disk, with JSON as a type where messages differ."""
    rows = [{"messages": chat, "args": value} for chat, value in zip(CHATS + CALLS, [{"a": 1}, [2, None], "text"], strict=True)]
    json_type = datasets.Features({"args": datasets.Json(), "messages": datasets.List(datasets.Json())})
    data = datasets.Dataset.from_list(rows, features=json_type)
    assert list(data) == rows
    data.to_parquet(str(tmp_path / "rows.parquet"))
    assert text(data_probe.rows(tmp_path / "rows.parquet")[0]) == text(list(data))
    data.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    info = {"file_name": "saved", "formatting": "openai"}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = encode(tmp_path, "rows.jsonl", info | {"file_name": "rows.jsonl"}, "stop", "qwen3")
    assert isinstance(expected, list) and encode(tmp_path, "saved", info, "stop", "qwen3") == expected


def random_type(rng, depth):
    plain = [pa.string(), pa.large_string(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.null(),
             pa.dictionary(pa.int32(), pa.string()), pa.float16(), pa.string_view()]
    kind = rng.randrange(5) if depth < 4 else 4
    if kind < 2:
        return [pa.list_, pa.large_list][kind](random_type(rng, depth + 1))
    if kind == 2:
        return pa.list_(random_type(rng, depth + 1), 2)
    if kind == 3:
        names = ["a", "b \"\n", "é"][:rng.randrange(1, 4)]
        return pa.struct([(name, random_type(rng, depth + 1)) for name in names])
    return rng.choice(plain)


def random_value(rng, kind):
    if pa.types.is_null(kind) or rng.random() < 0.2:
        return None
    if isinstance(kind, pa.StructType):
        return {field.name: random_value(rng, field.type) for field in kind}
    if pa.types.is_fixed_size_list(kind):
        return [random_value(rng, kind.value_type) for _ in range(2)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [random_value(rng, kind.value_type) for _ in range(rng.randrange(4))]
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        return rng.choice([0, 1, 127, -1 if pa.types.is_signed_integer(kind) else 2, 2**64 - 1 if kind == pa.uint64() else 3])
    if pa.types.is_floating(kind):
        return rng.choice([0.0, -0.0, 1.5, 0.1, 1e-5, 3e4, math.nan, math.inf] + ([1e300, 5e-324] if kind == pa.float64() else []))
    return rng.choice(["", "a", "\\\"\b\x01\u2028", "日本 🙂", "long " * 50])


def test_records_of_random_tables(tmp_path):
    rng = random.Random(5)
    num_types = set()
    for number in range(60):
        schema = pa.schema([(f"c{i}", random_type(rng, 0)) for i in range(rng.randrange(1, 4))])
        rows = [{field.name: random_value(rng, field.type) for field in schema} for _ in range(rng.randrange(1, 30))]
        table = pa.Table.from_pylist(rows, schema=schema)
        expected = text(table.to_pylist())
        num_types.update(str(field.type)[:8] for field in schema)
        for name, write in WRITERS.items():
            path = tmp_path / f"{number}-{name}"
            write(table, path)
            assert text(data_probe.rows(path)[0]) == expected, (schema, name)
    assert len(num_types) > 10


def test_types_that_are_not_read(tmp_path):
    """Times, decimals and maps are left out with a note. Where a role names such a column, it is refused by name."""
    import datetime
    import decimal
    table = pa.table({"q": ["x"], "a": ["y"], "time": [datetime.datetime(2026, 1, 2)], "day": [datetime.date(2026, 1, 2)],
                      "price": [decimal.Decimal("1.5")], "raw": [b"1"], "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
                      "part": [{"time": datetime.time(1), "x": 1}], "picture": [[{"bytes": b"1", "path": "p"}]], "nan": [math.nan]})
    for name, write in WRITERS.items():
        write(table, tmp_path / name)
        rows, notes = data_probe.rows(tmp_path / name)
        assert rows == [{"q": "x", "a": "y", "part": {"x": 1}, "nan": None}]
        assert "7 columns are not read, for their types: time (timestamp" in notes[0]
        assert all(text in notes[0] for text in ["day (date", "price (decimal", "raw (binary)", "map (", "part.time (time",
                                                 "picture (binary)"]), notes
        assert notes[1].endswith("nan and infinite numbers are read as null: 1")
        columns = {"prompt": "q", "response": "a"}
        assert isinstance(encode(tmp_path, name, {"columns": columns}, "stop"), list)
        for column, said in [("time", "the column time has the type timestamp"), ("raw", "Text must be of the type string")]:
            assert said in encode(tmp_path, name, {"columns": columns | {"system": column}}, "stop")
        assert "Pictures are read from files" in encode(tmp_path, name, {"columns": columns | {"images": "picture"}}, "stop")


def test_files_that_are_refused(tmp_path):
    table = pa.table({"text": ["a" * 1000, "b"]})
    path = tmp_path / "rows.parquet"

    def complaint(name="rows.parquet"):
        with pytest.raises(AssertionError) as error:
            data_probe.rows(tmp_path / name)
        return str(error.value)

    for codec in ["brotli", "lz4"]:
        pa.parquet.write_table(table, path, compression=codec)
        assert f"compressed by {codec}" in complaint().lower() and "snappy, gzip and zstd are read" in complaint()
    pyarrow.feather.write_feather(table, tmp_path / "rows.arrow", compression="lz4")
    assert "the values are compressed" in complaint("rows.arrow")
    pyarrow.feather.write_feather(table, tmp_path / "rows.arrow", compression="uncompressed")
    assert data_probe.rows(tmp_path / "rows.arrow")[0] == table.to_pylist()
    pa.parquet.write_table(pa.table([["a"], ["b"]], names=["x", "x"]), path)
    assert "two columns are called x" in complaint()
    pa.parquet.write_table(pa.table([["a"]] * 1001, names=[f"c{i}" for i in range(1001)]), path)
    assert "more than 1000 columns" in complaint()
    for name, write in WRITERS.items():  # cut off, and each byte changed
        write(table, tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:len(whole) // 2])
        assert "broken" in complaint(name)
        for place in range(0, len(whole), 37):
            (tmp_path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 0x81]) + whole[place + 1:])
            try:
                data_probe.rows(tmp_path / name)
            except AssertionError as error:
                assert "error" in str(error)


CONTENTS = {
    "rows.jsonl": '{"q": "a", "n": 1.5}\n\n{"q": "é"}\n', "rows.json": '[{"q": "a"},\n {"q": "b"}]', "rows.csv": 'q,n\na,1\n"b\nc",2\n',
    "pretty.json": '{\n "q": "a"\n}\n{"q": "b"}', "rows.txt": "a\nb\r\n\nc", "large.jsonl": '{"q": "a b c"}\n' * 30_000,
}


@pytest.mark.parametrize("name", CONTENTS)
def test_compressed_files(tmp_path, name):
    content = CONTENTS[name].encode()
    (tmp_path / name).write_bytes(content)
    expected = data_probe.rows(tmp_path / name)
    half = len(content) // 2
    written = {".gz": gzip.compress(content), ".zst": bytes(zstd.compress(content))}
    several = {".gz": gzip.compress(content[:half]) + gzip.compress(content[half:]),
               ".zst": bytes(zstd.compress(content[:half])) + bytes(zstd.compress(content[half:]))}
    for ending, compressed in written.items():
        path = tmp_path / (name + ending)
        for data in [compressed, several[ending]]:
            path.write_bytes(data)
            assert data_probe.rows(path) == (expected[0], [note.replace(name, path.name) for note in expected[1]])
        if name in ["rows.jsonl", "rows.csv"] and ending == ".gz":  # it reads .zst with one more package
            kind = name.split(".")[1].removesuffix("l")
            read = datasets.load_dataset(kind, data_files=[str(path)], split="train", cache_dir=str(tmp_path / "cache"))
            assert [{key: value for key, value in row.items() if value is not None} for row in read] == expected[0]
        for data in [compressed[:-9], b"x" + compressed]:
            path.write_bytes(data)
            with pytest.raises(AssertionError, match="the compressed data is broken, or ends early"):
                data_probe.rows(path)


def without_entry(folder, name, stage="sft"):
    """Documents of each row of a data set that is named by its path, or the error."""
    config = dict(model_name_or_path=str(fetch("qwen2_5")), dataset=str(name), dataset_dir=str(folder), output_dir="unused",
                  do_train=True, cutoff_len=1 << 20, template="qwen3", stage=stage)
    return run(folder, config)


def run(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    try:
        return [[(document["input_ids"], document["labels"]) for document in row["documents"]]
                for row in data_probe.examples(folder / "config.json")]
    except AssertionError as error:
        return str(error)


def with_entry(folder, rows, entry, stage="sft"):
    """The same of rows in a jsonl file that has an entry."""
    (folder / "entry").mkdir(exist_ok=True)
    (folder / "entry" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "entry" / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.jsonl"} | entry}))
    config = dict(model_name_or_path=str(fetch("qwen2_5")), dataset="rows", dataset_dir=str(folder / "entry"), output_dir="unused",
                  do_train=True, cutoff_len=1 << 20, template="qwen3", stage=stage)
    return run(folder / "entry", config)


OPENAI = {"formatting": "openai"}
SHARED = {"human": "user", "gpt": "assistant", "system": "system"}


def shared(chat):
    names = {role: name for name, role in SHARED.items()}
    return [{"from": names[message["role"]], "value": message["content"]} for message in chat]


def untrained(chat):
    return [message | {"train": False} if message["role"] == "assistant" else message for message in chat]


# The rows of a file, the stage, and the rows with their entry that must give the same tokens and labels.
FORMS = {
    "messages": lambda: ([{"messages": chat} for chat in CHATS], "sft", [{"messages": chat} for chat in CHATS], OPENAI),
    "messages and tools": lambda: (
        [{"messages": chat, "tools": json.dumps(TOOLS), "id": 1} for chat in CALLS], "sft",
        [{"messages": chat, "tools": TOOLS} for chat in CALLS], OPENAI),
    "conversations": lambda: ([{"conversations": shared(chat)} for chat in CHATS], "sft",
                              [{"messages": chat} for chat in CHATS], OPENAI),
    "prompt and completion": lambda: ([{"prompt": "Hi", "completion": "Hello"}], "sft",
                                      [{"instruction": "Hi", "output": "Hello"}], {}),
    "lists of prompt and completion": lambda: (
        [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in CHATS], "sft",
        [{"messages": untrained(chat[:-1]) + chat[-1:]} for chat in CHATS], OPENAI),
    "instruction and output": lambda: ([{"instruction": "Hi", "input": "you", "output": "Hello", "system": "s"}], "sft",
                                       [{"instruction": "Hi\nyou", "output": "Hello", "s": "s"}],
                                       {"columns": {"prompt": "instruction", "response": "output", "system": "s"}}),
    "text": lambda: ([{"text": "one"}, {"text": "two"}], "pt", [{"t": "one"}, {"t": "two"}], {"columns": {"prompt": "t"}}),
    "pairs of texts": lambda: ([{"prompt": "Hi", "chosen": "Hello", "rejected": "No"}], "dpo",
                               [{"instruction": "Hi", "chosen": "Hello", "rejected": "No"}],
                               {"ranking": True, "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}}),
    "pairs of LLaMA-Factory": lambda: (
        [{"conversations": shared(CHATS[1][:-1]), "chosen": {"from": "gpt", "value": "Bye"},
          "rejected": {"from": "gpt", "value": "No"}}], "dpo",
        [{"messages": CHATS[1][:-1], "chosen": CHATS[1][-1], "rejected": {"role": "assistant", "content": "No"}}], PAIRS),
    "votes": lambda: (
        [{"prompt": chat[:-1], "completion": chat[-1:], "label": len(chat) > 2} for chat in CHATS], "kto",
        [{"messages": chat, "good": len(chat) > 2} for chat in CHATS],
        OPENAI | {"columns": {"messages": "messages", "kto_tag": "good"}}),
    "votes on texts": lambda: ([{"prompt": "Hi", "completion": "Hello", "label": True},
                                {"prompt": "Hi", "completion": "No", "label": False}], "kto",
                               [{"q": "Hi", "a": "Hello", "good": True}, {"q": "Hi", "a": "No", "good": False}],
                               {"columns": {"prompt": "q", "response": "a", "kto_tag": "good"}}),
}
PAIRS = {"ranking": True, "formatting": "openai", "columns": {"messages": "messages", "chosen": "chosen", "rejected": "rejected"}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.",
                                           "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}}]


@pytest.mark.parametrize("name", FORMS)
def test_columns_say_how_rows_are_read(tmp_path, name):
    rows, stage, same, entry = FORMS[name]()
    expected = with_entry(tmp_path, same, entry, stage)
    assert isinstance(expected, list) and expected, expected
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert without_entry(tmp_path, tmp_path / "rows.jsonl", stage) == expected
    assert without_entry(tmp_path, "rows.parquet", stage) == expected  # of dataset_dir
    if stage != "dpo":
        assert "do not say how rows of stage rm" in without_entry(tmp_path, "rows.parquet", "rm")


def test_pairs_are_those_of_trl(tmp_path):
    """Lists of messages: the question is the prompt, or what both answers begin with, as TRL takes it."""
    answers = [{"role": "assistant", "content": text} for text in ["Yes", "No"]]
    rows = [{"chosen": chat[:-1] + answers[:1], "rejected": chat[:-1] + answers[1:]} for chat in CHATS]
    with_prompt = [{"prompt": chat[:-1], "chosen": answers[:1], "rejected": answers[1:]} for chat in CHATS]
    as_text = [row | {"prompt": chat[-2]["content"]} for row, chat in zip(rows, CHATS, strict=True)]
    trl_rows = [trl.extract_prompt(row) for row in rows]
    assert trl_rows == [trl.maybe_extract_prompt(row) for row in with_prompt] == [trl.maybe_extract_prompt(row) for row in as_text]
    expected = with_entry(tmp_path, [{"messages": row["prompt"], "chosen": row["chosen"][0], "rejected": row["rejected"][0]}
                                     for row in trl_rows], PAIRS, "dpo")
    assert isinstance(expected, list), expected
    for given in [rows, with_prompt, as_text]:
        pa.parquet.write_table(pa.Table.from_pylist(given), tmp_path / "rows.parquet")
        assert without_entry(tmp_path, "rows.parquet", "dpo") == expected
    for change, said in [({"prompt": "other"}, "prompt differs from the messages"),
                         ({"chosen": rows[0]["chosen"] + rows[0]["chosen"]}, "a pair has one answer on each side")]:
        (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0] | change) + "\n")
        assert said in without_entry(tmp_path, "rows.jsonl", "dpo")


def test_several_files(tmp_path):
    """A folder and a pattern: the files in the order of their names. LLaMA-Factory reads a folder whose files are of one kind."""
    chats = CHATS * 3
    (tmp_path / "parts").mkdir()
    for number, chat in enumerate(chats):
        pa.parquet.write_table(pa.table({"messages": [chat]}), tmp_path / "parts" / f"train-{number}.parquet")
    (tmp_path / "parts" / "README.md").write_text("of these files")
    expected = with_entry(tmp_path, [{"messages": chat} for chat in chats], OPENAI)
    for name in ["parts", "parts/train-*.parquet", "parts/train-[0-5].parquet", "parts/"]:
        assert without_entry(tmp_path, f"{tmp_path}/{name}") == expected
        entry = encode(tmp_path, name, OPENAI, "stop", "qwen3")
        assert [[row] for row in entry] == expected
    assert "no file fits the pattern" in encode(tmp_path, "parts/test-*", OPENAI, "stop", "qwen3")
    assert "there is no such file" in without_entry(tmp_path, "parts/test-*")
    (tmp_path / "parts" / "a.jsonl").write_text(json.dumps({"messages": chats[0]}))
    assert "files of different kinds" in encode(tmp_path, "parts", OPENAI, "stop", "qwen3")
    assert [[row] for row in encode(tmp_path, "parts/*.jsonl", OPENAI, "stop", "qwen3")] == expected[:1]
    (tmp_path / "parts" / "b.bin").write_text("")
    assert "such files are not read" in encode(tmp_path, "parts/*.b*", OPENAI, "stop", "qwen3")
