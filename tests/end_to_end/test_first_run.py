"""The script of the first run on GPUs does all it says, on simulated ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD
from device import gpus_for, simulated_environment, simulated_program

ROOT = Path(__file__).resolve().parent.parent.parent
# What the script asks of it: which GPUs there are, and MiB in use.
NVIDIA_SMI = """#!/bin/sh
case "$*" in
-L) echo "GPU 0: simulated (UUID: none)" ;;
*memory.used*nounits*) echo 0 ;;
*) echo "name, driver_version" ;;
esac
"""


@pytest.mark.long
def test_parts_that_train(tmp_path):
    build, tools, report = tmp_path / "build", tmp_path / "tools", tmp_path / "report.md"
    build.mkdir()
    tools.mkdir()
    (build / "longspan").symlink_to(simulated_program(BUILD))
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    environment = os.environ | simulated_environment(BUILD) | gpus_for(2)
    environment |= dict(PATH=f"{tools}:{os.environ['PATH']}", OMP_NUM_THREADS="1")
    script, work = ROOT / "tests/gpu/first_run.py", tmp_path / "work"
    command = [sys.executable, script, "--build", build, "--report", report, "--work", work, "--parts", "env,zero,memory",
               "--zero", "3, all offloads", "--processes", "2", "--memory", "tiny:256"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    text = report.read_text()
    assert "GPU 0" in text or "name, driver_version" in text
    assert "- passed: zero_stage 3, all offloads: losses of 5 steps beside one process" in text, text
    assert "| tiny | 256 | " in text and "- passed: no run takes more than its account" in text, text
    assert text.endswith("\n0 failed\n"), text
