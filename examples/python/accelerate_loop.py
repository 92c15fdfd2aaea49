"""A loop of accelerate: torchrun --nproc-per-node 2 examples/python/accelerate_loop.py"""

import tiny
import torch
from accelerate import Accelerator

import longspan

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
loader = torch.utils.data.DataLoader(tiny.Rows(), batch_size=2, shuffle=True)
model, loader = longspan.parallelize(tiny.model(), loader, sequence_parallel_size=accelerator.num_processes)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)  # not the loader, which is dealt to groups already
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.3f}")
