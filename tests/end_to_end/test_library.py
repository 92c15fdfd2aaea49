"""The library without the program: plan, account, and two runs after each other in one process."""

import json
import os
import subprocess

from conftest import BUILD, Finished
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


def test_a_mistake_is_an_error_of_the_library(settings, tmp_path):  # noqa: F811
    config = tmp_path / "library.yaml"
    config.write_text(json.dumps(settings("unused", model_name_or_path=str(tmp_path / "nothing"))))
    run = subprocess.run([BUILD / "library_runs", "once", config, tmp_path / "a", "0.1", tmp_path / "b", "0.1"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and run.stderr.startswith("error: ") and "nothing" in run.stderr, run.stderr
