"""How a run finds null GPUs (docs/architecture/gpus.md), and what it counts there."""

import json
import os

import torch


def null_program(build):
    return build / "null_cuda" / "longspan"


def null_environment(build, num_gpus=1, report=None, **variables):
    """Variables of a process that finds so many of them. `report`: a folder, where each process counts what it does."""
    found = os.environ.get("LD_PRELOAD", "")
    told = {"LD_PRELOAD": f"{build / 'null_cuda' / 'libcuda.so.1'} {found}".strip(), "NULL_CUDA_DEVICES": str(num_gpus)}
    return told | ({"NULL_CUDA_REPORT": str(report)} if report else {}) | variables


def counts_of(report):
    """In the order of ranks."""
    return sorted((json.loads(file.read_text()) for file in report.glob("*.json")), key=lambda counts: counts["rank"])


def why_none():
    """Why there are no null GPUs; empty where there are."""
    return "" if torch.version.cuda else "this torch is a CPU build: its libraries for CUDA are what null CUDA is for"
