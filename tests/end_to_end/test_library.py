"""The library without the program: plan, account, and two runs after each other in one process."""

import json
import os
import subprocess

from conftest import BUILD, Finished, Running, run_to_end
from conftest import run_processes as succeeds
from test_resume import KINDS, same_bytes, settings, weights  # noqa: F401


def test_two_runs_in_one_process_are_those_of_the_program(settings, tmp_path):  # noqa: F811
    keys = KINDS["dpo, lora, dropout"] | dict(
        precompute_ref_log_probs=True, max_steps=3, logging_steps=1, val_size=0.2, eval_strategy="steps", eval_steps=2)
    rates = ("0.001", "0.004")
    alone = [succeeds(settings(f"alone{rate}", learning_rate=float(rate), **keys)) for rate in rates]
    config = tmp_path / "library.yaml"
    config.write_text(json.dumps(settings("unused", **keys)))
    folders = [tmp_path / "first", tmp_path / "second"]
    words = [config, folders[0], rates[0], folders[1], rates[1]]
    run = subprocess.run([BUILD / "library_runs", "once", *words],
                         capture_output=True, text=True, env=os.environ | dict(OMP_NUM_THREADS="1"), timeout=120)
    assert run.returncode == 0 and run.stderr == "", run.stdout + run.stderr
    at_once = [tmp_path / "third", tmp_path / "fourth"]
    # At once, on two threads; a write to stdout or stderr would fail.
    words = [config, at_once[0], rates[0], at_once[1], rates[1]]
    closed = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&- 2>&-', BUILD / "library_runs", "at-once", *words],
                            env=os.environ | dict(OMP_NUM_THREADS="1"), timeout=120)
    assert closed.returncode == 0
    for folder, program in zip(at_once, alone):
        same_bytes(Finished([0], [], folder), program)
    for folder, program in zip(folders, alone):
        same_bytes(Finished([0], [], folder), program)
        account, measured = (json.loads((place / "memory.json").read_text()) for place in (folder, program.output_dir))
        assert measured.pop("measured") and account == measured
        assert f"the model is in {folder}\n" in run.stdout
    assert weights(folders[0]) != weights(folders[1])
    # What does not depend on the length of rows is known before there is a tensor, to the last digit.
    said = run.stdout.splitlines()  # the plan; then of each run its start and its end
    for line in ("Parameters ", "Gradients ", "Optimizer "):
        account = [text for text in said if text.startswith(line)]
        assert len(account) == 5 and len(set(account)) == 1, run.stdout


def run_on_own_rows(config, words):
    return subprocess.run([BUILD / "library_runs", "own-rows", config, *words], capture_output=True, text=True,
                          env=os.environ | dict(OMP_NUM_THREADS="1"), timeout=120)


def test_a_program_trains_on_its_own_rows_without_a_data_set(settings, tmp_path):  # noqa: F811
    """Evaluation is that of a run on a data set, and a resumed run goes on in the rows of its checkpoint."""
    still = "1e-30"  # the evaluated model is the one of the folder
    keys = dict(max_steps=4, logging_steps=1, eval_dataset="held_out", eval_strategy="steps", eval_steps=2, save_steps=2)
    known = run_to_end(settings("known", learning_rate=float(still), **keys))
    own = settings("own", **keys)
    del own["dataset"]
    config, resuming = tmp_path / "own.yaml", tmp_path / "resuming.yaml"
    config.write_text(json.dumps(own))
    folders = [tmp_path / name for name in ("still", "whole", "resumed", "again")]
    run = run_on_own_rows(config, [folders[0], still, folders[1], "0.01"])
    assert run.returncode == 0 and run.stderr == "", run.stdout + run.stderr
    assert "rows of the program that started the run" in run.stdout
    evaluated, whole = Finished([0], [], folders[0]), Finished([0], [], folders[1])
    assert evaluated.logged("eval_loss") == known.logged("eval_loss")
    assert len(set(whole.logged("eval_loss"))) == 2 and len(set(whole.logged("loss"))) == 4
    resuming.write_text(json.dumps(own | dict(resume_from_checkpoint=str(folders[1] / "checkpoint-2"))))
    run = run_on_own_rows(resuming, [folders[2], "0.01", folders[3], "0.01"])
    assert run.returncode == 0 and run.stdout.count("step 2 of 4") == 2, run.stdout + run.stderr
    for folder in folders[2:]:
        same_bytes(Finished([0], [], folder), whole)
    # The rows of a checkpoint stay those of a program, or those of a data set.
    with_data = Running(settings("other", **keys) | dict(resume_from_checkpoint=str(folders[1] / "checkpoint-2"))).wait()
    assert with_data.status == 1
    assert "the source of the training rows was the program that started the run, and is a data set now" in with_data.text
    resuming.write_text(json.dumps(own | dict(resume_from_checkpoint=str(known.output_dir / "checkpoint-2"))))
    run = run_on_own_rows(resuming, [tmp_path / "no", "0.01", tmp_path / "none", "0.01"])
    assert run.returncode == 1 and "the source of the training rows was a data set" in run.stderr, run.stderr
    assert "Set dataset back." in run.stderr


def test_a_mistake_is_an_error_of_the_library(settings, tmp_path):  # noqa: F811
    config = tmp_path / "library.yaml"
    config.write_text(json.dumps(settings("unused", model_name_or_path=str(tmp_path / "nothing"))))
    run = subprocess.run([BUILD / "library_runs", "once", config, tmp_path / "a", "0.1", tmp_path / "b", "0.1"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and run.stderr.startswith("error: ") and "nothing" in run.stderr, run.stderr
