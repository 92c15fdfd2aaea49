"""TRL's preference training: torchrun --nproc-per-node 2 examples/python/trl_dpo.py"""

import tiny
from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

import longspan

arguments = DPOConfig("output/trl_dpo", per_device_train_batch_size=2, max_steps=6, logging_steps=2, learning_rate=3e-2,
                      report_to=[], use_cpu=True, bf16=False, save_strategy="no")
pairs = dict(prompt=tiny.texts(16, 20), chosen=tiny.texts(16, 30), rejected=tiny.texts(16, 25)[::-1])
trainer = DPOTrainer(tiny.model(), args=arguments, train_dataset=Dataset.from_dict(pairs),
                     processing_class=tiny.tokenizer(), peft_config=LoraConfig(target_modules=["q_proj", "v_proj"]))
longspan.parallelize_trainer(trainer, sequence_parallel_size=arguments.world_size)
trainer.train()
