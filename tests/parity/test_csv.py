"""Rows of csv files: the values that Hugging Face datasets (pandas) reads, as LLaMA-Factory's converter takes them.

Longspan reads each csv file, and the same rows as messages in a jsonl file. Tokens and labels must be equal. Where pandas or
LLaMA-Factory refuses a file or drops a row, Longspan refuses the row.
"""

import importlib
import json
import random
import re
import types

import datasets
import llamafactory_data
import pytest
from probes import data_probe
from test_text import fetch

COLUMNS = {"prompt": "q", "query": "i", "response": "a", "system": "s"}
CASES = {
    "plain": "q,i,a,s\nx,y,z,be kind\nu,,v,\n",
    "mark and carriage returns": "\ufeffq,i,a,s\r\nx,y,z,w\r\n",
    "carriage returns alone": "q,i,a,s\rx,y,z,w\ru,,v,\r",
    "mixed line ends": "q,i,a,s\nx,y,z,w\r\nb,c,d,e\rf,g,h,i",
    "quotes": 'q,i,a,s\n"a, b","say ""no""",z,\nx"y","z"w"v,u,\n"""","",""" """,\n',
    "line ends in cells": 'q,i,a,s\n"x\ny\r\nz\rw\n","\n",a,\nu,,v,\n',
    "blank lines": '\n \nq,i,a,s\n\n\t \nx,y,z,w\n   \r\n\n  u , , v ,\n',
    "short rows": "q,i,a,s\nx,y,z\nu,,v\n",
    "an index": ",q,i,a,s\n0,x,y,z,w\n1,u,,v,\n",
    "no value": "q,i,a,s\nNA,x,a,None\nnan,null,b,\nN/A,x,<NA>,n/a\nnone, NA,na,NAN\n#N/A,-1.#IND,c,-nan\n,,NULL,NaN\n",
    "numbers among texts": "q,i,a,s\n1,007,1.50,x\ntwo,x, 3 ,1e5\nTrue,true,FALSE,no\n",
    "numbers": "q,i,a,s\nx,y,4,z\nx,y,5,z\n",
    "numbers and nothing": "q,i,a,s\nx,y,4,z\nx,y,,z\n",
    "a number as prompt": "q,i,a,s\n1,y,v,z\n2,y,w,z\n",
    "booleans": "q,i,a,s\nx,y,True,z\nx,y,FALSE,z\n",
    "infinity": "q,i,a,s\nx,y,inf,z\nx,y,-Infinity,z\n",
    "infinity between spaces": "q,i,a,s\nx,y, inf ,z\n",
    "other numbers": "id,m,n,q,i,a,s\n1,True,1e5,x,y,z,\n2,,.5,u,,v,\n",
    "other letters": "q,i,a,s\n日本語,é,🙂,\u00a0\n\u2028,\x0b5\x0c,\x1f,x\n",
    "too many cells": "q,i,a,s\nx,y,z,w\nx,y,z,w,v\n",
    "too many cells in the first row": "q,i,a,s\nv,x,y,z,w\nx,y,z,w\n",
    "a comma at the end of each row": "q,i,a,s\nx,y,z,w,\nu,v,w,x,\n",
    "an open quote": 'q,i,a,s\nx,y,z,w\n"x,y,z,w\n',
    "not UTF-8": b"q,i,a,s\nx,y,z,w\n\xff,y,z,w\n",
    "nothing": "",
}


@pytest.fixture(scope="module")
def converter():
    llamafactory_data.load()
    module = importlib.import_module("llamafactory.data.converter")
    names = {name: None for name in ["history", "tools", "images", "videos", "audios", "kto_tag", "ranking"]}
    attributes = types.SimpleNamespace(**COLUMNS, **names, load_from="file")
    return module.AlpacaDatasetConverter(attributes, types.SimpleNamespace(media_dir=""))


def encode(folder, name, entry, on_bad_row, template="qwen"):
    """Ids and labels of each row, or the error."""
    info = {"rows": {"file_name": name} | entry}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    config = dict(model_name_or_path=str(fetch("qwen2_5")), dataset="rows", dataset_dir=str(folder), output_dir="unused",
                  do_train=True, cutoff_len=1 << 20, template=template, on_bad_row=on_bad_row)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        return [(row["input_ids"], row["labels"]) for row in data_probe.examples(folder / "config.json")]
    except AssertionError as error:
        return str(error)


def chats_of(folder, content, converter):
    """The chats that LLaMA-Factory makes of the file's rows, without those that it drops; the number of rows. None: it
    fails."""
    (folder / "rows.csv").write_bytes(content)
    try:
        rows = datasets.load_dataset("csv", data_files=[str(folder / "rows.csv")], split="train",
                                     cache_dir=str(folder / "cache"))
        if "__index_level_0__" in rows.column_names:  # pandas has shifted the cells
            return None, 0
        converted = [converter(row) for row in rows]
    except (datasets.exceptions.DatasetGenerationError, TypeError, KeyError, ValueError, IndexError):
        return None, 0
    if any(not isinstance(row["_system"], (str, type(None))) for row in converted):  # its templates join texts
        return None, 0
    chats = []
    for row in converted:
        # The rule of SupervisedDatasetProcessor: one answer. Longspan drops empty answers, too.
        if len(row["_response"]) == 1 and row["_response"][0]["content"]:
            system = [{"role": "system", "content": row["_system"]}] if row["_system"] else []
            chats.append(system + row["_prompt"] + row["_response"])
    return chats, len(converted)


def compare(folder, content, converter):
    content = content if isinstance(content, bytes) else content.encode()
    chats, num_rows = chats_of(folder, content, converter)
    strict = encode(folder, "rows.csv", {"columns": COLUMNS}, "stop")
    if not chats:
        assert isinstance(strict, str), content
        return
    (folder / "rows.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    expected = encode(folder, "rows.jsonl", {"formatting": "openai"}, "stop")
    assert isinstance(expected, list), expected
    assert encode(folder, "rows.csv", {"columns": COLUMNS}, "skip") == expected, content
    assert (strict if len(chats) == num_rows else expected) == expected, content
    assert isinstance(strict, str) == (len(chats) < num_rows), content


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_datasets(tmp_path, converter, name):
    compare(tmp_path, CASES[name], converter)


def test_rows_of_random_files(tmp_path, converter):
    rng = random.Random(3)
    pieces = ['"', '"', ",", ",", ",", "\n", "\n", "\r\n", "\r", " ", "\t", "a", "b c", "1", "-2.5", "NA", "True", "é", '""', '"x, y"']
    for number in range(150):
        folder = tmp_path / str(number)
        folder.mkdir()
        if number % 2:
            body = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 30)))
        else:
            body = "".join(",".join(rng.choice(["a", "", "1", " b ", '"c\nd"', '"e,"', "nan", "True", '"""f"', "7.0"])
                                    for _ in range(rng.randrange(3, 5))) + rng.choice(["\n", "\r\n", "\n\n"])
                           for _ in range(rng.randrange(1, 6)))
        if not re.search(r"[ \t\r\n]\r,", body):  # pandas drops this comma: docs/data.md
            compare(folder, "q,i,a,s\n" + body, converter)


def test_what_a_type_costs_is_said(tmp_path, converter):
    """A column of numbers alone has no texts: LLaMA-Factory drops such rows, Longspan says why they are unusable."""
    content = CASES["numbers"].encode()
    assert chats_of(tmp_path, content, converter) == ([], 2)
    error = encode(tmp_path, "rows.csv", {"columns": COLUMNS}, "stop")
    assert "rows.csv, line 2: a is not text but number; a csv column whose cells are all numbers" in error
