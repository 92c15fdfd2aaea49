"""One run of transformers' Trainer at its best setting for these rows: no padding and no mask, so
that sdpa attention is the causal flash kernel. Usage: transformers_worker.py job.json"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from step_clock import step_clock


class SequentialTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    rows = json.loads(Path(job["tokens"]).read_text())
    model = AutoModelForCausalLM.from_pretrained(
        job["checkpoint"], attn_implementation="sdpa", dtype=torch.float32
    )
    model.config.use_cache = False

    def collate(features):
        return {key: torch.tensor([f[key] for f in features]) for key in ("input_ids", "labels")}

    arguments = TrainingArguments(
        output_dir=job["output_dir"], use_cpu=True, per_device_train_batch_size=1,
        gradient_accumulation_steps=1, max_steps=job["steps"],
        gradient_checkpointing=job["checkpointing"], optim="adamw_torch_fused",
        learning_rate=job["learning_rate"], lr_scheduler_type="constant", weight_decay=0.0,
        max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        remove_unused_columns=False, dataloader_num_workers=0, bf16=False, seed=42,
    )
    SequentialTrainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collate,
        callbacks=[step_clock(job["events"])],
    ).train()


main()
