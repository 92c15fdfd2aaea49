"""DeepSpeed's sharded parameters: torchrun --nproc-per-node 2 examples/python/deepspeed_zero3.py"""

import deepspeed
import tiny
import torch
import torch.distributed as dist

import longspan

deepspeed.init_distributed("gloo")  # on GPUs: "cpu:gloo,cuda:nccl"
loader = torch.utils.data.DataLoader(tiny.Rows(), batch_size=2)
model, loader = longspan.parallelize(tiny.model(), loader, sequence_parallel_size=dist.get_world_size())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
config = dict(train_micro_batch_size_per_gpu=2, zero_optimization=dict(stage=3), zero_allow_untested_optimizer=True)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for batch in loader:
    loss = engine(**batch).loss
    engine.backward(loss)
    engine.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
