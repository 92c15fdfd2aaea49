"""A loop of your own: torchrun --nproc-per-node 2 examples/python/plain_loop.py"""

import tiny
import torch
import torch.distributed as dist

import longspan

dist.init_process_group("gloo")  # nccl on GPUs
loader = torch.utils.data.DataLoader(tiny.Rows(), batch_size=2, shuffle=True)
model, loader = longspan.parallelize(tiny.model(), loader, sequence_parallel_size=dist.get_world_size())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    loader.set_epoch(epoch)
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()  # ends with the mean of gradients over all ranks
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
