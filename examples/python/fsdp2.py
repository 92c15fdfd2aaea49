"""Sharded parameters: torchrun --nproc-per-node 2 examples/python/fsdp2.py"""

import tiny
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import longspan

dist.init_process_group("gloo")
loader = torch.utils.data.DataLoader(tiny.Rows(), batch_size=2)
model, loader = longspan.parallelize(tiny.model(), loader, sequence_parallel_size=dist.get_world_size())
for layer in model.model.layers:
    fully_shard(layer)  # over all ranks, also those that share rows
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
