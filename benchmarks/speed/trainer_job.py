"""What the workers that drive a Trainer of transformers' family share: the job, the model, the rows
and the arguments. Runs in the peer's process."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def read_job(kind=AutoModelForCausalLM):
    """(job, model, rows) of the job file that the command line names. `kind`: of the model."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    model = kind.from_pretrained(
        job["checkpoint"], attn_implementation="sdpa", dtype=torch.float32
    )
    return job, model, json.loads(Path(job["tokens"]).read_text())


def training_arguments(job: dict) -> dict:
    return dict(
        output_dir=job["output_dir"], use_cpu=True, per_device_train_batch_size=1,
        gradient_accumulation_steps=1, max_steps=job["steps"],
        gradient_checkpointing=job["checkpointing"], optim="adamw_torch_fused",
        learning_rate=job["learning_rate"], lr_scheduler_type="constant", weight_decay=0.0,
        max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        dataloader_num_workers=0, bf16=job.get("bf16", False), seed=42,
    )
