"""One run of transformers' Trainer on rows with pictures, at its best setting: sdpa attention without padding, the
default (torchvision) processor. Usage: pictures_worker.py job.json"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, TrainingArguments
from transformers_worker import SequentialTrainer

from step_clock import step_clock
from trainer_job import read_job, training_arguments


def main():
    job, model, rows = read_job(AutoModelForImageTextToText)
    model.config.text_config.use_cache = False
    if job["keys"]["freeze_vision_tower"]:
        model.model.visual.requires_grad_(False)
    processor = AutoImageProcessor.from_pretrained(job["checkpoint"])
    token = model.config.image_token_id

    def collate(features):
        batch = {key: torch.tensor([f[key] for f in features]) for key in ("input_ids", "labels")}
        batch["mm_token_type_ids"] = (batch["input_ids"] == token).int()
        pictures = [Image.open(file) for f in features for file in f["images"]]
        return batch | dict(processor(pictures, return_tensors="pt"))

    SequentialTrainer(
        model=model, train_dataset=rows, data_collator=collate,
        args=TrainingArguments(**training_arguments(job), remove_unused_columns=False),
        callbacks=[step_clock(job["events"])],
    ).train()


main()
