"""TRL's reinforcement learning: torchrun --nproc-per-node 2 examples/python/trl_grpo.py"""

import tiny
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import longspan


def even_words(completions, **_) -> list[float | None]:
    """The reward: the share of an answer's words that have even numbers."""
    return [sum(word[-1] in "02468" for word in answer.split()) / max(1, len(answer.split())) for answer in completions]


arguments = GRPOConfig("output/trl_grpo", per_device_train_batch_size=8, num_generations=8, max_completion_length=16,
                       max_steps=12, logging_steps=1, learning_rate=3e-2, report_to=[], use_cpu=True, bf16=False,
                       save_strategy="no")
trainer = GRPOTrainer(tiny.model(), reward_funcs=even_words, args=arguments, processing_class=tiny.tokenizer(),
                      train_dataset=Dataset.from_dict(dict(prompt=tiny.texts(8, 12))))
longspan.parallelize_trainer(trainer, sequence_parallel_size=arguments.world_size)
trainer.train()
if trainer.is_world_process_zero():
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    print(f"mean reward: {sum(rewards[:3]) / 3:.2f} in the first 3 steps, {sum(rewards[-3:]) / 3:.2f} in the last 3")
