"""One run of TRL's DPOTrainer on the benchmark's own tokens: two rows of one length, so nothing is
padded and sdpa attention is the causal flash kernel. Its reference model is the one that it makes by
itself. Usage: trl_worker.py job.json"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from step_clock import step_clock
from training_arguments import training_arguments


class TokensTrainer(DPOTrainer):
    def _prepare_dataset(self, dataset, *args, **kwargs):
        return dataset


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    pairs = json.loads(Path(job["tokens"]).read_text())
    model = AutoModelForCausalLM.from_pretrained(
        job["checkpoint"], attn_implementation="sdpa", dtype=torch.float32
    )
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
