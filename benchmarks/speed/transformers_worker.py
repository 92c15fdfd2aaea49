"""One run of transformers' Trainer at its best setting for these rows: no padding and no mask, so
that sdpa attention is the causal flash kernel. Usage: transformers_worker.py job.json"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from transformers import Trainer, TrainingArguments

from step_clock import step_clock
from trainer_job import read_job, training_arguments


class SequentialTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    job, model, rows = read_job()
    model.config.use_cache = False

    def collate(features):
        return {key: torch.tensor([f[key] for f in features]) for key in ("input_ids", "labels")}

    SequentialTrainer(
        model=model, train_dataset=rows, data_collator=collate,
        args=TrainingArguments(**training_arguments(job), remove_unused_columns=False),
        callbacks=[step_clock(job["events"])],
    ).train()


if __name__ == "__main__":
    main()
