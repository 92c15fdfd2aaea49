"""What a run says of its rows, and rows that it cannot use."""

import json
import re

import pytest
from conftest import Running, add_dataset, settings_of, write_dataset


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """20 rows of which two cannot be read and one cannot be encoded."""
    folder = tmp_path_factory.mktemp("rows") / "data"
    good = write_dataset(folder, num_rows=20, shortest=10, longest=20, name="good")
    lines = [json.dumps({"conversations": [{"from": "human", "value": row["instruction"]},
                                           {"from": "gpt", "value": row["output"]}]}) for row in good]
    lines.insert(15, json.dumps({"conversations": [{"from": "human", "value": "Is there"},
                                                   {"from": "gpt", "value": "Yes", "train": False}]}))
    lines.insert(7, json.dumps({"conversations": [{"from": "human", "value": "Nobody answers"}]}))
    lines.insert(3, '{"conversations": [')
    (folder / "bad.jsonl").write_text("\n".join(lines))
    info = json.loads((folder / "dataset_info.json").read_text())
    info["bad"] = {"file_name": "bad.jsonl", "formatting": "sharegpt"}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def test_bad_rows_stop_a_run_or_are_left_out_of_it(rows, models, tmp_path):
    settings = settings_of(models["qwen2"], rows, tmp_path / "one", max_steps=6)
    settings |= dict(save_strategy="steps", save_steps=3)
    stopped = Running(settings | dict(dataset="bad"), 2).wait()
    assert stopped.statuses == [1, 1]
    assert stopped.text.count("error: ") == 1
    assert "dataset bad: 2 of 23 rows cannot be used:" in stopped.text
    assert "bad.jsonl, line 4: broken JSON" in stopped.text
    assert "bad.jsonl, line 9: the chat ends with a question" in stopped.text
    assert not (tmp_path / "one").exists()

    # Left out, what is left is what it would be without them, on one process and on two that share rows.
    plain = Running(settings | dict(dataset="good", output_dir=str(tmp_path / "plain"))).wait()
    skips = settings | dict(dataset="bad", on_bad_row="skip")
    one = Running(skips).wait()
    assert plain.status == one.status == 0, plain.text + one.text
    assert "warning: dataset bad: 2 of 23 rows left out" in one.text
    assert "the data: 1 of 21 rows left out" in one.text
    assert one.logged("loss") == plain.logged("loss")
    two = Running(skips | dict(output_dir=str(tmp_path / "two"), sequence_parallel_size=2), 2).wait()
    assert two.status == 0, two.text
    assert two.logged("loss") == pytest.approx(one.logged("loss"), rel=1e-5)

    # A run that goes on has the same rows.
    again = Running(skips | dict(max_steps=8)).wait()
    assert again.status == 0 and "Going on from" in again.text, again.text


@pytest.mark.parametrize("stage", ["sft", "dpo", "kto"])
def test_cut_rows_are_counted(stage, models, tmp_path):
    folder = tmp_path / "data"
    answers = ["a short one", "a short one", "a short one", "a long one " * 30]
    if stage == "dpo":
        add_dataset(folder, "rows", [{"q": "which", "c": a, "r": "no"} for a in answers], ranking=True,
                    columns={"prompt": "q", "chosen": "c", "rejected": "r"})
    else:
        columns = {"prompt": "q", "response": "a"} | ({"kto_tag": "t"} if stage == "kto" else {})
        add_dataset(folder, "rows", [{"q": "which", "a": a, "t": True} for a in answers], columns=columns)
    settings = settings_of(models["qwen2"], folder, tmp_path / "run", dataset="rows", stage=stage, max_steps=1)

    def said(**keys):
        run = Running(settings | dict(overwrite_output_dir=True) | keys).wait()
        assert run.status == 0, run.text
        return [line for line in run.text.splitlines() if re.search("(was|were) cut", line)]

    assert said() == []
    (line,) = said(cutoff_len=60)
    assert line.startswith("1 of 4 rows was cut, ") and "cutoff_len is 60" in line
    (line,) = said(cutoff_len=10)
    assert line.startswith("warning: cutoff_len cuts nearly every row: 4 of 4 rows were cut")


def test_a_qwen3_is_told_of_its_templates(tmp_path):
    from conftest import write_model, write_tokenizer

    write_dataset(tmp_path / "data", num_rows=4)
    model = write_model(tmp_path / "model", "qwen3")
    settings = settings_of(model, tmp_path / "data", tmp_path / "run", max_steps=1, overwrite_output_dir=True)
    run = Running(settings | dict(template="qwen3")).wait()
    assert "has no <think>: take qwen3_nothink" in run.text, run.text
    fast = write_tokenizer(tmp_path / "model")
    fast.add_tokens(["<think>", "</think>"])
    fast.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert len(fast) > config["vocab_size"]  # the model is told apart before a row is refused
    run = Running(settings | dict(template="qwen")).wait()
    assert run.status == 0, run.text
    assert "the model is a Qwen3. Its templates are qwen3 (" in run.text
    run = Running(settings | dict(template="qwen3_nothink")).wait()
    assert run.status == 0 and "Its templates are" not in run.text, run.text
