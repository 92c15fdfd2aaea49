"""TRL's reinforcement learning: torchrun --nproc-per-node 2 examples/python/trl_grpo.py"""

import tiny
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import longspan


def many_words(completions, **_) -> list[float | None]:
    """The reward: different words in an answer."""
    return [float(len(set(answer.split()))) for answer in completions]


arguments = GRPOConfig("output/trl_grpo", per_device_train_batch_size=4, num_generations=4, max_completion_length=16,
                       max_steps=4, logging_steps=1, learning_rate=1e-3, report_to=[], use_cpu=True, bf16=False,
                       save_strategy="no")
trainer = GRPOTrainer(tiny.model(), reward_funcs=many_words, args=arguments, processing_class=tiny.tokenizer(),
                      train_dataset=Dataset.from_dict(dict(prompt=tiny.texts(8, 12))))
longspan.parallelize_trainer(trainer, sequence_parallel_size=arguments.world_size)
trainer.train()
