"""What a run leaves on disk."""

import json

import pytest
from conftest import Running, settings_of


def test_files_of_a_run(train):
    run = train(max_steps=4, plot_loss=True, save_strategy="steps", save_steps=1,
                save_total_limit=2, logging_steps=2)
    names = {path.name for path in run.output_dir.iterdir()}
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
              "trainer_log.jsonl", "trainer_state.json", "train_results.json", "all_results.json",
              "training_loss.png", "checkpoint-3", "checkpoint-4"}
    assert wanted <= names
    assert not [name for name in names if name.startswith(".")]
    assert "checkpoint-2" not in names  # save_total_limit
    assert (run.output_dir / "training_loss.png").read_bytes().startswith(b"\x89PNG")

    lines = [json.loads(line) for line in (run.output_dir / "trainer_log.jsonl").open()]
    assert [line["current_steps"] for line in lines] == [2, 4, 4]
    assert lines[0].keys() >= {"loss", "lr", "epoch", "percentage", "elapsed_time",
                               "remaining_time", "throughput", "total_tokens", "total_steps"}
    assert lines[1]["percentage"] == 100
    # A log line's loss is the mean of its steps; console, log and state tell the same.
    assert [line["loss"] for line in lines if "loss" in line] == run.logged("loss")
    assert sum(run.logged("loss")) / 2 == pytest.approx(run.history[-1]["train_loss"])
    assert f"'loss': {run.logged('loss')[0]:.6g}" in run.text
    state = json.loads((run.output_dir / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["global_step"] == 3


def test_checkpoints_load_in_transformers_and_train_on(train, models, data, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = train("qwen2", max_steps=2, save_strategy="epoch")
    for folder in (run.output_dir, run.output_dir / "checkpoint-2"):
        _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        assert AutoTokenizer.from_pretrained(folder).chat_template
    on = Running(settings_of(run.output_dir, data, tmp_path / "on", max_steps=1)).wait()
    assert on.status == 0, on.text
    assert on.logged("loss")[0] < run.logged("loss")[0]


def test_overwriting_needs_leave(train, models, data):
    run = train("llama", max_steps=1)
    before = {path: path.stat().st_mtime_ns for path in run.output_dir.iterdir()}
    settings = settings_of(models["llama"], data, run.output_dir, max_steps=2)
    refused = Running(settings).wait()
    assert refused.status == 1
    assert "overwrite_output_dir" in refused.text
    assert before == {path: path.stat().st_mtime_ns for path in run.output_dir.iterdir()}
    again = Running(settings | dict(overwrite_output_dir=True)).wait()
    assert again.status == 0, again.text
    assert len(again.logged("loss")) == 2
