"""The arguments that every Trainer of transformers' family is given in these benchmarks."""


def training_arguments(job: dict) -> dict:
    return dict(
        output_dir=job["output_dir"], use_cpu=True, per_device_train_batch_size=1,
        gradient_accumulation_steps=1, max_steps=job["steps"],
        gradient_checkpointing=job["checkpointing"], optim="adamw_torch_fused",
        learning_rate=job["learning_rate"], lr_scheduler_type="constant", weight_decay=0.0,
        max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        dataloader_num_workers=0, bf16=False, seed=42,
    )
