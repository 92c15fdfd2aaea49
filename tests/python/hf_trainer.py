"""transformers' Trainer of a small model on rows of uneven lengths, and its numbers."""

import pytest
import torch

EXAMPLES = 26
# Arguments that shard parameters.
SHARDED = {
    "fsdp2": dict(fsdp=True, fsdp_config=dict(version=2, transformer_layer_cls_to_wrap=["LlamaDecoderLayer"])),
    "zero3": dict(deepspeed=dict(
        train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps="auto", gradient_clipping="auto",
        zero_optimization=dict(stage=3), zero_allow_untested_optimizer=True)),
}


def examples(count=EXAMPLES):
    generator = torch.Generator().manual_seed(7)
    made = []
    for number in range(count):
        ids = torch.randint(1, 96, (19 + number * 5 % 17,), generator=generator)
        made.append(dict(input_ids=ids.tolist(), labels=ids.where(torch.arange(len(ids)) > 3, -100).tolist()))
    return made


def padded(batch):
    longest = max(len(example["input_ids"]) for example in batch)

    def stack(lists, padding):
        return torch.tensor([one + [padding] * (longest - len(one)) for one in lists])

    ids = [example["input_ids"] for example in batch]
    return dict(input_ids=stack(ids, 0), attention_mask=stack([[1] * len(one) for one in ids], 0),
                labels=stack([example["labels"] for example in batch], -100))


def trainer_of(folder, model, collator=padded, make_examples=examples, **arguments):
    from transformers import Trainer, TrainingArguments

    options = dict(per_device_train_batch_size=2, per_device_eval_batch_size=4, gradient_accumulation_steps=2, max_steps=10,
                   learning_rate=1e-3, adam_epsilon=1e-2, logging_steps=1, eval_strategy="steps", eval_steps=5,
                   save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=3, prediction_loss_only=True)
    return Trainer(model, TrainingArguments(folder, **options | arguments), data_collator=collator,
                   train_dataset=make_examples(EXAMPLES), eval_dataset=make_examples(6))


def let_cpus_shard():
    """accelerate takes the arguments of FSDP for several GPUs alone: lets it take these ranks for GPUs then."""
    from accelerate import DistributedType, PartialState
    from transformers import Trainer

    make = Trainer.create_accelerator_and_postprocess

    def make_for_gpus(trainer):
        if trainer.args.fsdp:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        make(trainer)

    Trainer.create_accelerator_and_postprocess = make_for_gpus


def logs_of(trainer, resume=False):
    """Trains. Returns the loss and the norm of gradients of each step, and the losses of evaluations."""
    trainer.train(resume_from_checkpoint=resume)
    logs = trainer.state.log_history
    return ([(log["loss"], log["grad_norm"]) for log in logs if "grad_norm" in log],
            [log["eval_loss"] for log in logs if "eval_loss" in log])


def close(found, expected):
    """Asserts that losses differ by 1e-5 at most, and norms of gradients by 1e-4."""
    assert len(found[0]) == len(expected[0]) and len(found[1]) == len(expected[1]) == 2
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours == (pytest.approx(theirs[0], abs=1e-5), pytest.approx(theirs[1], abs=1e-4)), (found, expected)
    assert found[1] == pytest.approx(expected[1], abs=1e-5)
