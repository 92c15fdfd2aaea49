"""The jobs of examples/cluster, with programs that stand for the cluster's."""

import os
import subprocess

import pytest
import yaml
from conftest import PROGRAM, ROOT, settings_of, write_config

EXAMPLES = ROOT / "examples" / "cluster"
# Runs the command after its own options, and signals it as Slurm does before the limit, if this is the job's first start.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
"$@" & child=$!
if [ -z "$SLURM_RESTART_COUNT" ]; then
  until [ -d "$SHARED/output/checkpoint-2" ] || ! kill -0 $child; do sleep 0.02; done
  kill -USR1 $child
fi
wait $child
"""


@pytest.fixture
def job(models, data, tmp_path):
    """job(script, restart=None, **keys): the status of a start of the job, whose output lies at tmp_path/output."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "longspan").symlink_to(PROGRAM)
    for name, text in (("srun", SRUN), ("scontrol", f"#!/bin/sh\necho $* >> {tmp_path}/requeued\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def start(script, restart=None, **keys):
        settings = settings_of(models["qwen2"], data, tmp_path / "run", save_strategy="steps", save_steps=2, max_steps=40)
        settings = settings | dict(output_dir=str(tmp_path / "output")) | keys
        (tmp_path / "run.yaml").write_text(write_config(settings).read_text())
        environment = os.environ | dict(PATH=f"{programs}:{os.environ['PATH']}", SHARED=str(tmp_path), OMP_NUM_THREADS="1")
        environment |= dict(SLURM_JOB_ID="7", SLURM_CPUS_PER_TASK="1")
        if restart:
            environment["SLURM_RESTART_COUNT"] = restart
        script = script.replace("/shared", str(tmp_path))
        return subprocess.run(["bash", "-c", script], env=environment, timeout=120).returncode

    return start


def test_slurm(job, tmp_path):
    script = (EXAMPLES / "slurm.sbatch").read_text()
    assert job(script) == 0
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert not (tmp_path / "output/train_results.json").exists()
    assert job(script, restart="1") == 0
    assert (tmp_path / "output/train_results.json").exists()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_slurm_with_a_wrong_configuration(job, tmp_path):
    assert job((EXAMPLES / "slurm.sbatch").read_text(), learning_rate=-1) == 1
    assert not (tmp_path / "requeued").exists()


def test_pods(job, tmp_path):
    parts = yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text())["spec"]["pytorchReplicaSpecs"]
    assert [parts[kind]["replicas"] for kind in ("Master", "Worker")] == [1, 1]
    (container,) = parts["Master"]["template"]["spec"]["containers"]
    assert parts["Worker"]["template"]["spec"]["containers"] == [container]
    # A pod that failed is started again by the same command.
    for steps in (4, 6):
        assert job(" ".join(container["command"]), max_steps=steps) == 0
    assert sorted(folder.name for folder in (tmp_path / "output").glob("checkpoint-*")) == [
        "checkpoint-2", "checkpoint-4", "checkpoint-6"
    ]
