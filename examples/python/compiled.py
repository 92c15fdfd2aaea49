"""torch.compile and gradient checkpointing: torchrun --nproc-per-node 2 examples/python/compiled.py"""

import tiny
import torch
import torch.distributed as dist

import longspan

dist.init_process_group("gloo")
model = tiny.model()
model.gradient_checkpointing_enable(dict(use_reentrant=False))
loader = torch.utils.data.DataLoader(tiny.Rows(6), batch_size=2)
model, loader = longspan.parallelize(model, loader, sequence_parallel_size=dist.get_world_size())
compiled = torch.compile(model, backend="aot_eager")  # on GPUs without the backend; attention stays outside of the graphs
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in loader:
    loss = compiled(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
