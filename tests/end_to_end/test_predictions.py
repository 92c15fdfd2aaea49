"""Generated answers in evaluation: `predict_with_generate` and `do_predict`."""

import json
import math
import pathlib
import sys

import pytest
import torch
from conftest import ROOT, run_to_end, settings_of
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.append(str(ROOT / "tests" / "parity"))
from llamafactory_metric import means_of  # noqa: E402

ANSWERS = dict(predict_with_generate=True, do_predict=True, eval_dataset="held_out", max_new_tokens=12,
               per_device_eval_batch_size=2)
SPEED = ["runtime", "samples_per_second", "steps_per_second"]


def settings(models, data, output_dir, **keys):
    """Settings of a run that trains nothing."""
    whole = settings_of(models["qwen2"], data, output_dir, **(ANSWERS | dict(do_train=False) | keys))
    return {key: value for key, value in whole.items() if key not in ("dataset", "max_steps")}


def lines_of(folder):
    return [json.loads(line) for line in (pathlib.Path(folder) / "generated_predictions.jsonl").read_text().splitlines()]


def results_of(folder, split="predict"):
    return json.loads((pathlib.Path(folder) / f"{split}_results.json").read_text())


def check_results(results, lines, split="predict"):
    """LLaMA-Factory's metric of the same texts. Both means are sums of as many numbers, each rounded once for each number."""
    wanted = means_of([(line["predict"], line["label"]) for line in lines])
    assert {*results} - {"epoch"} == {f"{split}_{name}" for name in [*wanted, *SPEED]}
    for name, mean in wanted.items():
        assert math.isclose(results[f"{split}_{name}"], mean, rel_tol=len(lines) * 2**-52), name


def test_answers_are_those_of_transformers(models, data, tmp_path):
    """Greedy; the prompts and labels are the rows as the model's template has them."""
    run_to_end(settings(models, data, tmp_path / "run", do_sample=False))
    model = AutoModelForCausalLM.from_pretrained(models["qwen2"])
    tokenizer = AutoTokenizer.from_pretrained(models["qwen2"])
    lines = lines_of(tmp_path / "run")
    rows = json.loads((pathlib.Path(data) / "held_out.json").read_text())
    for line, row in zip(lines, rows, strict=True):
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": row["instruction"]}], add_generation_prompt=True,
                                               tokenize=False)
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)[0, ids.shape[1]:]
        assert line == dict(prompt=prompt, predict=tokenizer.decode(answer, skip_special_tokens=True),
                            label=row["output"] + "\n")
    check_results(results_of(tmp_path / "run"), lines)
    assert results_of(tmp_path / "run", "all") == results_of(tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("keys", [dict(do_sample=False), dict(temperature=1.5, top_p=0.9)], ids=["greedy", "sampled"])
def test_processes_divide_the_rows(keys, models, data, tmp_path):
    """Five rows on two and three ranks, alone and sharing rows: the same file."""
    ways = {"one": (1, {}), "data": (3, {}), "sequence": (2, dict(sequence_parallel_size=2)),
            "sharded": (2, dict(zero_stage=3))}
    files = {}
    for name, (num_ranks, more) in ways.items():
        run_to_end(settings(models, data, tmp_path / name, **keys, **more), num_ranks)
        files[name] = (tmp_path / name / "generated_predictions.jsonl").read_bytes()
    assert all(file == files["one"] for file in files.values())
    assert len({line["predict"] for line in lines_of(tmp_path / "one")}) > 1


def test_evaluations_of_a_training(models, data, tmp_path):
    """Each evaluation generates with the model of its step, and the predictions are those of the trained model."""
    keys = ANSWERS | dict(do_eval=True, eval_strategy="steps", eval_steps=2, max_steps=4, do_sample=False, plot_loss=True,
                          finetuning_type="lora", learning_rate=5e-3, skip_special_tokens=False)
    trained = run_to_end(settings_of(models["qwen2"], data, tmp_path / "run", **keys), 2)
    folder = trained.output_dir
    lines = lines_of(folder)
    assert all("<|im_end|>" in line["label"] for line in lines)
    after, evaluated = results_of(folder), results_of(folder, "eval")
    whole = results_of(folder, "all")
    assert "eval_loss" not in evaluated and whole["predict_bleu-4"] == evaluated["eval_bleu-4"] == after["predict_bleu-4"]
    history = [entry for entry in json.loads((folder / "trainer_state.json").read_text())["log_history"]
               if "eval_bleu-4" in entry]
    assert [entry["step"] for entry in history] == [2, 4] and history[0]["eval_bleu-4"] != history[1]["eval_bleu-4"]
    # The saved adapter alone gives the same answers.
    run_to_end(settings(models, data, tmp_path / "again", finetuning_type="lora", adapter_name_or_path=str(folder),
                        do_sample=False, do_eval=True, skip_special_tokens=False))
    assert lines_of(tmp_path / "again") == lines
    check_results(results_of(tmp_path / "again"), [
        line | {key: line[key].replace("<|im_end|>", "").replace("<|endoftext|>", "") for key in ("predict", "label")}
        for line in lines])
    assert results_of(tmp_path / "again", "eval")["eval_rouge-l"] == after["predict_rouge-l"]
