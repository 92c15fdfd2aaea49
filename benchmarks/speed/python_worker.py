"""One rank of transformers' Trainer whose ranks share the rows: by longspan, DeepSpeed's UlyssesSPAttentionHF,
accelerate's context parallelism (torch), or axolotl-ringmaster's Ulysses. Started with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in the environment. Usage: python_worker.py JOB.json; each rank writes "output".RANK of the job."""

import json
import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments

from trainer_job import read_job, training_arguments


def memory(key):
    return int(re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


class Meter(TrainerCallback):
    """Times of steps, logged numbers, and the peak of the resident set from the start of training."""

    def __init__(self):
        self.ends, self.losses = [], []

    def on_train_begin(self, *given, **named):
        Path("/proc/self/clear_refs").write_text("5")
        self.level = memory("VmRSS")
        self.ends.append(time.time())

    def on_step_end(self, *given, **named):
        self.ends.append(time.time())

    def on_log(self, args, state, control, logs=None, **named):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))

    def result(self):
        return dict(seconds=[b - a for a, b in zip(self.ends, self.ends[1:])], losses=self.losses, level=self.level,
                    peak=memory("VmHWM"))


class RowsTrainer(Trainer):
    def _get_train_sampler(self, *given, **named):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def collate(features):
    return {key: torch.tensor([one[key] for one in features]) for key in ("input_ids", "labels")}


def collate_positions(features):
    batch = collate(features)
    return batch | dict(position_ids=torch.arange(batch["input_ids"].shape[1])[None])


def trainer_of(job, model, rows, kind=RowsTrainer, collator=collate, **more):
    arguments = TrainingArguments(**training_arguments(job) | more, remove_unused_columns=False)
    return kind(model=model, args=arguments, train_dataset=rows, data_collator=collator)


def longspan(job, model, rows, **options):
    sys.path.insert(0, job["package"])
    import longspan

    trainer = trainer_of(job, model, rows)
    longspan.parallelize_trainer(trainer, sequence_parallel_size=job["ranks"], mode=job["mode"],
                                 num_tokens=job["row_tokens"], **options)
    return trainer


def longspan_fused(job, model, rows):
    return longspan(job, model, rows, fused_loss=True, fused_layers=True)


def longspan_saved(job, model, rows):
    return longspan(job, model, rows, fused_loss=True, fused_layers=True, save_products=True)


def deepspeed(job, model, rows):
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    config = dict(train_micro_batch_size_per_gpu=1, gradient_accumulation_steps=1, gradient_clipping=1.0,
                  zero_optimization=dict(stage=0), zero_allow_untested_optimizer=True)
    sharing = ParallelismConfig(sp_size=job["ranks"], sp_backend="deepspeed", sp_handler=DeepSpeedSequenceParallelConfig(
        sp_seq_length_is_variable=True, sp_attn_implementation="sdpa"))
    return trainer_of(job, model, rows, collator=collate_positions, deepspeed=config, parallelism_config=sharing,
                      use_cpu=False)  # with use_cpu accelerate ignores DeepSpeed


def accelerate(job, model, rows):
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import TorchContextParallelConfig

    lend_torch_ring()
    # accelerate shards the model by FSDP beside context parallelism, which it does on GPUs only; here DDP averages gradients.
    ParallelismConfig._validate_accelerator = lambda self, accelerator: None
    sharing = ParallelismConfig(cp_size=job["ranks"], cp_backend="torch",
                                cp_handler=TorchContextParallelConfig(cp_comm_strategy="allgather"))
    return trainer_of(job, model, rows, collator=collate_positions, parallelism_config=sharing)


def lend_torch_ring():
    """torch's ring attention has no rule for the flash kernel of CPUs; its template runs with this kernel."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental._context_parallel import _attention

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def locals_of(*tensors):
        return [one.to_local() if isinstance(one, DTensor) else one for one in tensors]

    def wrap(tensors, like):
        return tuple(DTensor.from_local(one, like.device_mesh, like.placements, run_check=False) for one in tensors)

    def flash_rule(op, args, kwargs):
        query, key, value, dropout, is_causal = (list(args) + [0.0, False])[:5]
        out = _attention._templated_ring_attention(
            query.device_mesh.get_group(), 2, flash, *locals_of(query, key, value), is_causal=is_causal,
            dropout_p=dropout, scale=kwargs.get("scale"))
        return wrap(out, query)

    def run_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, **named):
        return backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=named.get("scale"))

    def backward_rule(op, args, kwargs):
        grad, query, key, value, out, logsumexp, dropout, is_causal = args[:8]
        local = dict(zip(("grad_out", "query", "key", "value", "out", "logsumexp"),
                         locals_of(grad, query, key, value, out, logsumexp)))
        grads = _attention._templated_ring_attention_backward(
            query.device_mesh.get_group(), 2, run_backward, grad_out_name="grad_out", is_causal=is_causal,
            dropout_p=dropout, scale=kwargs.get("scale"), **local)
        return wrap(grads[:3], query)

    _attention.custom_ops[flash.default] = flash_rule
    _attention.custom_ops[backward.default] = backward_rule


def ringmaster(job, model, rows):
    import ringmaster as rm
    from ringmaster.loss import global_num_items_in_batch
    from ringmaster.shard import shard_batch

    dist.is_initialized() or dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (job["ranks"],), mesh_dim_names=("cp",))
    runtime = rm.setup(rm.RingmasterConfig(size=job["ranks"], backend=rm.Backend.ULYSSES),
                       num_kv_heads=model.config.num_key_value_heads, device_mesh=mesh, device_type="cpu",
                       inner_attn="sdpa")
    model.set_attn_implementation(runtime.attn_implementation)

    class SharedRows(RowsTrainer):
        def get_train_dataloader(self):
            """Every rank has every row."""
            return torch.utils.data.DataLoader(self.train_dataset, batch_size=1, collate_fn=self.data_collator)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            shard, _ = shard_batch(inputs, cp_rank=runtime.cp_rank, cp_size=runtime.cp_size)
            labels = shard.get("shift_labels", shard.get("labels"))
            count = global_num_items_in_batch(labels, runtime.cp_group, 1)
            return model(**shard, num_items_in_batch=count).loss

    return trainer_of(job, model, rows, kind=SharedRows)


WAYS = dict(longspan=longspan, longspan_fused=longspan_fused, longspan_saved=longspan_saved, deepspeed=deepspeed,
            accelerate=accelerate, ringmaster=ringmaster)


def main():
    job, model, rows = read_job()
    model.config.use_cache = False
    trainer = WAYS[job["way"]](job, model, rows)
    meter = Meter()
    trainer.add_callback(meter)
    trainer.train()
    Path(f"{job['output']}.{os.environ['RANK']}").write_text(json.dumps(meter.result()))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
