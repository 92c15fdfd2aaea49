"""One run of TRL's DPOTrainer on the benchmark's own tokens: two rows of one length, so nothing is
padded and sdpa attention is the causal flash kernel. Its reference model is the one that it makes by
itself. Usage: trl_worker.py job.json"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from datasets import Dataset
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer

from step_clock import step_clock
from trainer_job import read_job, training_arguments


class TokensTrainer(DPOTrainer):
    def _prepare_dataset(self, dataset, *args, **kwargs):
        return dataset


def main():
    job, model, pairs = read_job()
    arguments = DPOConfig(
        **training_arguments(job), loss_type=[job["keys"]["pref_loss"]],
        beta=job["keys"]["pref_beta"], max_length=None, train_sampling_strategy="sequential",
    )
    TokensTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(pairs),
        processing_class=AutoTokenizer.from_pretrained(job["checkpoint"]),
        callbacks=[step_clock(job["events"])],
    ).train()


main()
