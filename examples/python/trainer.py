"""transformers' Trainer: torchrun --nproc-per-node 2 examples/python/trainer.py"""

import tiny
from transformers import Trainer, TrainingArguments, default_data_collator

import longspan

arguments = TrainingArguments("output/trainer", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=8,
                              learning_rate=1e-3, logging_steps=4, eval_strategy="steps", eval_steps=4, report_to=[],
                              prediction_loss_only=True, use_cpu=True, save_strategy="no", disable_tqdm=True)
trainer = Trainer(tiny.model(), arguments, data_collator=default_data_collator, train_dataset=tiny.Rows(),
                  eval_dataset=tiny.Rows(4))
longspan.parallelize_trainer(trainer, sequence_parallel_size=arguments.world_size, mode="auto")
trainer.train()
