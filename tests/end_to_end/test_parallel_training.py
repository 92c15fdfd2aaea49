"""However the ranks share the work, the numbers of a run are those of one process."""

import json

import pytest
from conftest import (
    ROOT, TOLERANCE, Running, add_dataset, modes_of_the_program, relative_difference, run_processes, run_to_end, same_run, settings_of,
    write_model,
)
from shared import made_once

NUM_STEPS = 10
MODES = modes_of_the_program()


@pytest.fixture(scope="session")
def models(models, place):
    """Three more: 6 query and 2 kv heads, which 2 and 3 divide, without and with norms of heads, and with windows of 24
    tokens in one layer of two."""
    def six(kind):
        return lambda folder: write_model(folder, kind, num_attention_heads=6, hidden_size=96)

    return models | {"six": str(made_once(place / "six", six("qwen2"))),
                     "gemma3": str(made_once(place / "six_gemma3", six("gemma3"))),
                     "qwen3": str(made_once(place / "qwen3", lambda folder: write_model(folder, "qwen3")))}


def check_traffic(run):
    """What was counted is the formula's, to the byte, and is told."""
    report = json.loads((run.output_dir / "sequence_parallel.json").read_text())
    for direction in ("forward", "backward"):
        sent = report["bytes_per_layer"][direction]
        collectives = ("all_to_all", "all_gather", "reduce_scatter", "shift")
        assert sent["measured"] == sum(sent[name] for name in collectives) == sent["formula"] > 0, report
        assert f"{sent['formula']:,}" in run.texts[0]
    assert report["choice"] in run.texts[0]
    return report


def test_every_mode_is_in_the_tables():
    pages = {"README.md": "## Ways to share a row", "docs/methods.md": "# Methods of sequence parallelism"}
    for page, heading in pages.items():
        table = (ROOT / page).read_text().split(heading)[1].split("\n## ")[0]
        named = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
        assert [mode for mode in MODES if not any(f"`{mode}`" in cell for cell in named)] == [], page


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.rest), 3])
def test_every_mode(mode, num_ranks, models, data, reference, train, tmp_path):
    settings = dict(max_steps=NUM_STEPS, learning_rate=3e-4)
    changes = settings | dict(sequence_parallel_size=num_ranks, sequence_parallel_mode=mode)
    model = "qwen2"  # 14 query and 2 kv heads
    unable = ("ulysses", "xtuner-ulysses", "async-ulysses")
    if num_ranks == 3 and mode in unable:
        refused = Running(settings_of(models[model], data, tmp_path / "refused", **changes), 3).wait()
        assert refused.status == 1
        assert f"split them: {', '.join(other for other in MODES if other not in unable)}." in refused.texts[0]
        model = "six"
    # Three ranks are processes, whose groups meet over Gloo, and two are threads.
    run = train(model, num_ranks, way=run_processes if num_ranks == 3 else run_to_end, **changes)
    assert len(run.logged("loss")) == NUM_STEPS
    same_run(reference(model, **settings), run)
    report = check_traffic(run)
    assert report["rows"] == 4 * NUM_STEPS
    assert report["choice"].startswith(f"sequence parallelism: {mode}")


@pytest.mark.parametrize("mode, num_ranks", [(mode, 2 + i % 2) for i, mode in enumerate(MODES)])
def test_windows_in_every_mode(mode, num_ranks, reference, train):
    """Layers with a window and without in one model: rows are longer than the window and than a share."""
    settings = dict(max_steps=5, learning_rate=3e-4)
    run = train("gemma3", num_ranks, sequence_parallel_size=num_ranks, sequence_parallel_mode=mode, **settings)
    same_run(reference("gemma3", **settings), run)
    check_traffic(run)


@pytest.mark.parametrize("model, num_ranks, checkpointing, keys", [
    ("qwen2", 4, True, dict(sequence_parallel_mode="usp", sequence_parallel_ulysses_degree=2)),
    ("qwen2", 4, False, dict(sequence_parallel_mode="usp", sequence_parallel_ring_degree=2,
                             sequence_parallel_head_waves=3)),
    ("qwen2", 4, True, dict(sequence_parallel_mode="loongtrain", sequence_parallel_ulysses_degree=1,
                            sequence_parallel_window_size=2)),
    ("qwen2", 4, False, dict(sequence_parallel_mode="xtuner-ulysses")),  # heads in two slices
    ("qwen2", 2, True, dict(sequence_parallel_mode="ulysses", sequence_parallel_head_waves=7)),
    ("six", 2, False, dict(sequence_parallel_mode="balanced-ulysses", sequence_parallel_head_waves=2)),
    ("six", 2, True, dict(sequence_parallel_mode="async-ulysses", sequence_parallel_head_waves=3)),
    ("qwen3", 2, False, dict(sequence_parallel_mode="async-ulysses")),
    ("qwen2", 4, True, dict()),
])
def test_compositions(model, num_ranks, checkpointing, keys, reference, train):
    settings = dict(max_steps=3, learning_rate=3e-4)
    run = train(model, num_ranks, sequence_parallel_size=num_ranks, way=run_processes if checkpointing else run_to_end,
                disable_gradient_checkpointing=not checkpointing, **settings, **keys)
    same_run(reference(model, **settings), run)
    report = check_traffic(run)
    if not keys:
        assert "(auto): 14 heads do not divide by 4" in report["choice"]


@pytest.mark.parametrize("mode", ["ulysses", "zigzag-ring", "llama3"])
def test_traffic_of_groups_in_bf16(mode, train):
    """Two data-parallel groups, one with more rows: together they are what the formula says."""
    run = train("llama", 4, sequence_parallel_size=2, sequence_parallel_mode=mode, bf16=True,
                max_samples=5, gradient_accumulation_steps=1, max_steps=3, disable_shuffling=True)
    assert check_traffic(run)["rows"] == 5
    assert not (train("llama", 1, max_steps=1).output_dir / "sequence_parallel.json").exists()


@pytest.mark.parametrize(
    "model, num_ranks, degree, mode",
    [
        ("llama", 2, 2, "ulysses"),
        ("llama", 2, 2, "zigzag-ring"),
        ("qwen2", 2, 1, None),
        ("llama", 4, 2, "zigzag-ring"),
        ("llama", 4, 4, "ulysses"),
    ],
)
def test_same_losses(model, num_ranks, degree, mode, reference, train):
    settings = dict(max_steps=NUM_STEPS, learning_rate=3e-4)
    one = reference(model, **settings)
    changes = dict(sequence_parallel_size=degree)
    if mode:
        changes |= dict(sequence_parallel_mode=mode)
    # The same 4 rows a step, dealt to the data-parallel groups.
    changes |= dict(gradient_accumulation_steps=4 * degree // num_ranks)
    many = train(model, num_ranks, **settings | changes)
    assert len(many.logged("loss")) == NUM_STEPS
    same_run(one, many)
    assert many.history[-1]["train_loss"] == pytest.approx(one.history[-1]["train_loss"], rel=1e-5)


def test_batch_of_several_rows_and_a_short_last_step(reference, train):
    """22 rows, 8 a step: the last step has 6, and one data-parallel group gets fewer."""
    settings = dict(max_steps=6, max_samples=22, learning_rate=3e-4)
    one = reference("llama", gradient_accumulation_steps=8, **settings)
    settings |= dict(per_device_train_batch_size=2, sequence_parallel_size=2)
    many = train("llama", 4, gradient_accumulation_steps=2, **settings)
    same_run(one, many)
    many = train("llama", 2, gradient_accumulation_steps=4, **settings)
    same_run(one, many)


def test_a_group_without_rows(reference, train):
    """5 rows for two groups with 4 each: the second gets one, then none."""
    settings = dict(max_steps=3, max_samples=5, learning_rate=3e-4, disable_shuffling=True)
    one = reference("qwen2", gradient_accumulation_steps=8, **settings)
    many = train("qwen2", 2, gradient_accumulation_steps=4, **settings)
    same_run(one, many)


def test_answer_wholly_in_one_shard(models, tmp_path):
    """A one-word answer after a long question: most ranks have nothing to learn from it."""
    data = tmp_path / "data"
    rows = [
        {"instruction": f"{i} " + "word and another " * 40, "input": "", "output": "yes"}
        for i in range(4)
    ]
    add_dataset(data, "chats", rows)
    runs = []
    for num_ranks, mode in ((1, None), (2, "ulysses"), (4, "ulysses"), (4, "zigzag-ring")):
        settings = settings_of(models["llama"], data, tmp_path / f"run{len(runs)}", max_steps=4,
                               gradient_accumulation_steps=1, sequence_parallel_size=num_ranks)
        if mode:
            settings["sequence_parallel_mode"] = mode
        runs.append(run_to_end(settings, num_ranks))
    for run in runs[1:]:
        same_run(runs[0], run)


def test_evaluation(reference, train):
    """The loss of the evaluation set does not depend on ranks or batch size."""
    settings = dict(max_steps=4, eval_dataset="held_out", eval_strategy="steps", eval_steps=2,
                    learning_rate=3e-4)
    one = reference("qwen2", **settings)
    assert len(one.logged("eval_loss")) == 2
    assert one.logged("eval_loss")[0] > one.logged("eval_loss")[1]
    results = json.loads((one.output_dir / "all_results.json").read_text())
    assert results["eval_loss"] == one.logged("eval_loss")[-1]
    assert results["train_loss"] == pytest.approx(sum(one.logged("loss")) / 4)
    many = train("qwen2", 2, sequence_parallel_size=2, per_device_eval_batch_size=2, **settings)
    assert relative_difference(one.logged("eval_loss"), many.logged("eval_loss")) < TOLERANCE
    many = train("qwen2", 2, gradient_accumulation_steps=2, per_device_eval_batch_size=1,
                 **settings)
    assert relative_difference(one.logged("eval_loss"), many.logged("eval_loss")) < TOLERANCE


def test_accumulation_and_checkpointing_change_nothing(reference, train):
    settings = dict(max_steps=5, learning_rate=3e-4)
    one = reference("qwen2", **settings)
    same_run(one, train("qwen2", gradient_accumulation_steps=2, per_device_train_batch_size=2,
                        **settings))
    same_run(one, train("qwen2", disable_gradient_checkpointing=True, **settings))


def test_a_run_repeats_bit_for_bit_and_the_seed_matters(reference, train):
    settings = dict(max_steps=4, learning_rate=3e-4)
    first, again = reference("qwen2", **settings), train("qwen2", **settings)
    assert first.logged("loss") == again.logged("loss")
    assert first.logged("loss") != train("qwen2", seed=7, **settings).logged("loss")
