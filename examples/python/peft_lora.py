"""LoRA adapters: torchrun --nproc-per-node 2 examples/python/peft_lora.py"""

import tiny
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model

import longspan

dist.init_process_group("gloo")
model = get_peft_model(tiny.model(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
loader = torch.utils.data.DataLoader(tiny.Rows(), batch_size=2)
model, loader = longspan.parallelize(model, loader, sequence_parallel_size=dist.get_world_size())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
