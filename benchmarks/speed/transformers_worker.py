"""One run of transformers' Trainer at its best setting for these rows: no padding and no mask, so
that sdpa attention is the causal flash kernel. Usage: transformers_worker.py job.json"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from step_clock import step_clock
from training_arguments import training_arguments


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

    arguments = TrainingArguments(**training_arguments(job), remove_unused_columns=False)
    SequentialTrainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collate,
        callbacks=[step_clock(job["events"])],
    ).train()


main()
