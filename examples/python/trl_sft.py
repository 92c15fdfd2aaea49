"""TRL's supervised fine-tuning with packing: torchrun --nproc-per-node 2 examples/python/trl_sft.py"""

import tiny
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

import longspan

arguments = SFTConfig("output/trl_sft", per_device_train_batch_size=1, max_steps=6, packing=True, max_length=96,
                      logging_steps=2, learning_rate=1e-3, report_to=[], use_cpu=True, bf16=False, save_strategy="no")
trainer = SFTTrainer(tiny.model(), arguments, train_dataset=Dataset.from_dict(dict(text=tiny.texts(24, 40))),
                     processing_class=tiny.tokenizer())
longspan.parallelize_trainer(trainer, sequence_parallel_size=arguments.world_size)
trainer.train()
