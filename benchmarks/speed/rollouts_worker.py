"""One run of TRL's GRPOTrainer on given rollouts: nothing is generated. Answers have one length, so nothing is padded
and sdpa attention is the causal flash kernel. Its reference model is the one that it makes by itself. Usage:
rollouts_worker.py job.json"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from step_clock import step_clock
from trainer_job import read_job, training_arguments


def main():
    job, model, groups = read_job()
    at_once, generations = job["at_once"], len(groups[0]["answers"])
    reward_of = {tuple(answer): reward for group in groups
                 for answer, reward in zip(group["answers"], group["rewards"])}

    class GivenRollouts(GRPOTrainer):
        def _generate(self, prompts):
            group = groups.pop(0)
            assert len(prompts) == generations
            answers = group["answers"]
            return [group["prompt_ids"]] * generations, answers, None, ["text"] * generations, None, {}, None, None

    def reward(completion_ids, **_):
        return [reward_of[tuple(ids)] for ids in completion_ids]

    arguments = GRPOConfig(**training_arguments(job) | dict(
        per_device_train_batch_size=at_once, gradient_accumulation_steps=generations // at_once,
        num_generations=generations, max_completion_length=len(groups[0]["answers"][0]), temperature=1.0,
        loss_type=job["keys"]["loss_type"], beta=job["keys"]["beta"]))
    GivenRollouts(
        model=model, reward_funcs=[reward], args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "text"}] * (len(groups) + 1)),
        processing_class=AutoTokenizer.from_pretrained(job["checkpoint"]),
        callbacks=[step_clock(job["events"])],
    ).train()


main()
