"""Rollouts of the model itself and of a file: answers, rewards, tools, resumed runs, and refused rollouts."""

import ast
import itertools
import json
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import Running, add_dataset, run_to_end, settings_of, write_model
from faults import wait_for
from full_disk import full_disk, shim  # noqa: F401 (fixtures)

STEPS = 4


def questions(folder):
    folder.mkdir(exist_ok=True)
    rows = [{"instruction": f"What is {i} and {i + 1}?", "input": "", "output": str(2 * i + 1)} for i in range(6)]
    add_dataset(folder, "questions", rows)
    return folder


def settings_for(models, folder, name, **keys):
    data = questions(folder / "data")
    settings = settings_of(models["qwen2"], data, folder / name, stage="grpo", dataset="questions")
    return settings | dict(rollout="self", rewards="length,exact_match", reward_weights="1,2", num_generations=3,
                           max_completion_length=12, cutoff_len=256, per_device_train_batch_size=2,
                           gradient_accumulation_steps=1, max_steps=STEPS, num_iterations=2, save_strategy="steps",
                           save_steps=1, beta=0.02) | keys


@pytest.mark.parametrize("ranks", [1, 2])
def test_resumed_amid_a_batch(ranks, models, tmp_path):
    keys = dict(sequence_parallel_size=ranks)
    whole = run_to_end(settings_for(models, tmp_path, "whole", plot_loss=True, **keys), ranks)
    drawn = {path.name.removeprefix("training_") for path in whole.output_dir.glob("*.png")}
    assert drawn == {"loss.png", "reward.png", "entropy.png", "kl.png", "completions_mean_length.png",
                     "completions_clipped_ratio.png", "clip_ratio_low_mean.png", "clip_ratio_high_mean.png",
                     "sampling_logp_difference.png"}
    rollouts = sorted((whole.output_dir / "rollouts").glob("batch-*"))
    assert [path.name for path in rollouts] == ["batch-000000.jsonl", "batch-000001.jsonl"]
    rows = [json.loads(line) for line in rollouts[0].read_text().splitlines()]
    assert len(rows) == 2 * 3 and len({row["group"] for row in rows}) == 2
    for row in rows:
        trained = sum(row["mask"])
        assert row["reward"] == pytest.approx(-trained / 12 + 2 * row["rewards"]["exact_match"])
        assert all(number <= 0 for number in row["logprobs"])
    # The sampler's log-probabilities are the trainer's.
    assert max(whole.logged("sampling/logp_difference")[::2]) < 1e-4
    weights = (whole.output_dir / "model.safetensors").read_bytes()
    (whole.output_dir / "model.safetensors").unlink()
    # The first update on the second batch is done, the second is not.
    from_third = str(whole.output_dir / "checkpoint-3")
    resumed = run_to_end(settings_for(models, tmp_path, "whole", **keys, resume_from_checkpoint=from_third), ranks)
    assert (resumed.output_dir / "model.safetensors").read_bytes() == weights



@pytest.mark.parametrize("ranks", [1, 2])
def test_full_disk(ranks, models, tmp_path, full_disk):  # noqa: F811 (the fixture)
    keys = dict(sequence_parallel_size=ranks)
    undisturbed = run_to_end(settings_for(models, tmp_path, "undisturbed", **keys), ranks)
    full_disk("batch-000001")
    failed = Running(settings_for(models, tmp_path, "run", **keys), ranks).wait()
    assert all(status != 0 for status in failed.statuses), failed.text
    assert failed.text.count("batch-000001.jsonl: No space left on device. Free some space") == 1, failed.text
    assert (failed.output_dir / "checkpoint-2").is_dir()
    full_disk("no file")
    resumed = run_to_end(settings_for(models, tmp_path, "run", **keys, resume_from_checkpoint=True), ranks)
    weights = [(run.output_dir / "model.safetensors").read_bytes() for run in (undisturbed, resumed)]
    assert weights[0] == weights[1]


def file_settings(models, folder, name, **keys):
    settings = settings_of(models["qwen2"], folder, folder / name, stage="grpo") | dict(
        rollouts=str(folder / "rollouts.jsonl"), num_generations=2, per_device_train_batch_size=1,
        gradient_accumulation_steps=1, max_steps=4, cutoff_len=64, save_strategy="steps", save_steps=1)
    return {key: value for key, value in settings.items() if key not in ("dataset", "dataset_dir")} | keys


def lines_of(groups, **fields):
    return [json.dumps(dict(group=group, token_ids=[5, 6 + group, 7, 9 + i], mask=[0, 0, 1, 1], reward=float(i)) | fields)
            for group in groups for i in range(2)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_file_of_rollouts(ranks, models, tmp_path):
    """The file grows, a stop while the run waits saves a checkpoint, and another file is refused by it."""
    keys = dict(sequence_parallel_size=ranks)
    file = tmp_path / "rollouts.jsonl"
    file.write_text("\n".join(lines_of(range(4))) + "\n")
    whole = run_to_end(file_settings(models, tmp_path, "whole", **keys), ranks)

    file.write_text("\n".join(lines_of(range(2))) + "\n")
    waiting = Running(file_settings(models, tmp_path, "half", **keys), ranks)
    wait_for(waiting, "Waiting for rollouts in ", seconds=60)
    for rank in waiting.ranks:
        rank.send_signal(signal.SIGINT)
    waiting.wait()
    assert (tmp_path / "half" / "checkpoint-2").is_dir()
    with file.open("a") as growing:
        growing.write("\n".join(lines_of(range(2, 4))) + "\n")
    resumed = run_to_end(file_settings(models, tmp_path, "half", **keys, resume_from_checkpoint=True), ranks)
    weights = [(run.output_dir / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]

    file.write_text("\n".join(lines_of([7, 1, 2, 3])) + "\n")
    refused = Running(file_settings(models, tmp_path, "half", **keys,
                                    resume_from_checkpoint=str(tmp_path / "half" / "checkpoint-2")), ranks).wait()
    assert set(refused.statuses) != {0}
    assert refused.text.count("differ from the rollouts of the run that saved the checkpoint") == 1


@pytest.mark.parametrize("keys, ranks", [
    (dict(num_iterations=2), 1),
    (dict(loss_type="gspo", beta=0.04), 2),
    (dict(loss_type="reinforce_plus_plus_baseline", top_entropy_quantile=0.5), 1),
])
def test_a_step_without_a_trained_token(keys, ranks, models, tmp_path):
    """Every answer of the second batch is truncated and left out: nothing changes, and the run goes on."""
    lines = [json.loads(line) for line in lines_of(range(4))]
    for line in lines:
        line |= dict(truncated=line["group"] == 1, logprobs=[-5.0, -6.0])
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = run_to_end(file_settings(models, tmp_path, "run", mask_truncated_completions=True, sequence_parallel_size=ranks,
                                   **keys), ranks)
    updates = keys.get("num_iterations", 1)
    losses, norms = run.logged("loss"), run.logged("grad_norm")
    assert len(losses) == 4 and losses[updates:2 * updates] == norms[updates:2 * updates] == [0] * updates
    assert all(norm > 0 for norm in norms[:updates] + norms[2 * updates:])


@pytest.mark.parametrize("fields, keys, sentence", [
    (dict(advantage=[0.5, -0.5], reward=None), dict(loss_type="gspo"), "line 1: advantage differs among the tokens"),
    (dict(advantage=0.5, reward=None), dict(loss_type="rloo", beta=0.1), "line 1: the rollout has an advantage instead of a reward"),
    (dict(token_ids=[5] * 70, mask=[0] * 69 + [1]), {}, "line 1: the rollout has 70 tokens, more than cutoff_len 64"),
    (dict(rewad=1), {}, "line 1: rewad is no field of a rollout"),
    ({}, dict(max_steps=5, rollout_timeout=0), "the file has 0 complete groups for a step that needs 1"),
    ({}, dict(rewards="number"), "rewards: number has no effect with rollout: file"),
    ({}, dict(lora_dropout=0.1, finetuning_type="lora", num_iterations=2), "lora_dropout would make different"),
])
def test_what_is_refused(fields, keys, sentence, models, tmp_path):
    rows = [{key: value for key, value in (json.loads(line) | fields).items() if value is not None}
            for line in lines_of(range(4))]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = Running(file_settings(models, tmp_path, "run", **keys)).wait()
    assert set(refused.statuses) != {0}
    assert refused.text.count(sentence) == 1, refused.text


def test_unused_fields_are_named(models, tmp_path):
    lines = lines_of(range(4), teacher_logprobs=[-1.0, -2.0])
    (tmp_path / "rollouts.jsonl").write_text("\n".join(lines) + "\n")
    run = run_to_end(file_settings(models, tmp_path, "run"))
    assert run.text.count("teacher_logprobs are for stage distill") == 1
    assert run.text.count("have no logprobs of the sampler") == 1


ENVIRONMENT = '''
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    assert list(asked) == ["id", "turn", "prompt", "solution", "answer", "end"], asked
    if asked["end"] or (asked["turn"] == 1 and asked["id"].endswith(".2")):
        reply = dict(reward=asked["turn"] + len(asked["answer"]) / 100)
    else:
        reply = dict(observation=f"heard {len(asked['answer'])} letters", role="tool")
    print(json.dumps(reply), flush=True)
'''


@pytest.mark.parametrize("ranks", [1, 2])
def test_environment(ranks, tmp_path):
    """Turns of a tool: sampled tokens stay, the tool's are not trained, and both are the chat template's."""
    from transformers import AutoTokenizer

    folder = write_model(tmp_path / "qwen2", "qwen2")
    ends = list(range(5, 480, 6)) + [AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|im_end|>")]
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | dict(eos_token_id=ends)))
    (tmp_path / "environment.py").write_text(ENVIRONMENT)
    keys = dict(rewards="environment,length", reward_weights="1,0.5", max_turns=3,
                environment_command=f"{sys.executable} {tmp_path / 'environment.py'}", sequence_parallel_size=ranks)
    run = run_to_end(settings_for({"qwen2": str(folder)}, tmp_path, "run", **keys), ranks)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = []
    for path in sorted((run.output_dir / "rollouts").glob("batch-*")):
        for row in map(json.loads, path.read_text().splitlines()):
            ids, mask = row["token_ids"], row["mask"]
            assert len(ids) == len(mask) and row["reward"] == pytest.approx(
                row["rewards"]["environment"] - 0.5 * sum(mask) / 12)
            parts = [[id for id, _ in group] for _, group in itertools.groupby(zip(ids, mask), key=lambda pair: pair[1])]
            answers, others = parts[1::2], parts[2::2]
            for answer, other in zip(answers, others):
                assert answer[-1] in ends and not set(answer[:-1]) & set(ends)
                said = f"heard {len(tokenizer.decode(answer[:-1], skip_special_tokens=True))} letters"
                chat = [dict(role="user", content="a"), dict(role="assistant", content="b"), dict(role="tool", content=said)]
                text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
                assert other == tokenizer.encode(text.split("b<|im_end|>")[1], add_special_tokens=False)
            turns.append(len(answers))
            assert row["rewards"]["environment"] // 1 == len(answers) - 1
    assert set(turns) == {1, 2, 3}
    assert max(run.logged("sampling/logp_difference")[::2]) < 1e-4


def test_the_calculators_own_example():
    """The calculator replies to the lines of its description as it says."""
    program = pathlib.Path(__file__).parents[2] / "examples" / "reinforcement" / "calculator.py"
    lines = [line.strip() for line in ast.get_docstring(ast.parse(program.read_text())).splitlines()]
    asked = [line for line in lines if line.startswith('{"id"')]
    promised = [json.loads(line) for line in lines if line.startswith('{') and line not in asked]
    assert len(asked) == len(promised) == 2
    replies = subprocess.run([sys.executable, program], input="\n".join(asked) + "\n", capture_output=True, text=True,
                             check=True).stdout
    assert [json.loads(line) for line in replies.splitlines()] == promised


def test_environment_that_ends(models, tmp_path):
    settings = settings_for(models, tmp_path, "run", rewards="environment", reward_weights="1",
                            environment_command="echo no tool here >&2; exit 4")
    failed = Running(settings, 2).wait()
    assert set(failed.statuses) != {0}
    assert failed.text.count("ended (it returned status 4), with 0 of 12 replies written:\nno tool here") == 1
