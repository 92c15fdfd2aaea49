"""The same training by transformers, for the part `speed` of first_run.py: fp32 weights under bf16 autocast, which is what
`bf16: true` means there, sdpa without a mask, gradient checkpointing, fused AdamW. Prints seconds of each step, losses, the
peak of the GPU's memory, and the missing packages of kernels for recurrences, without which transformers computes them by
torch's operators.

  transformers_steps.py MODEL TOKENS.json STEPS"""

import importlib
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM


def is_missing(package):
    """As transformers finds out: also a package that is there, and cannot be imported."""
    try:
        importlib.import_module(package)
    except Exception:
        return True
    return False


def main():
    folder, rows, steps = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3])
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).cuda()
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    seconds, losses = [], []
    for step in range(steps):
        row = {key: torch.tensor([rows[step % len(rows)][key]], device="cuda") for key in ("input_ids", "labels")}
        torch.cuda.synchronize()
        begin = time.time()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**row).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        torch.cuda.synchronize()
        seconds.append(time.time() - begin)
    wanted = ["fla", "causal_conv1d"] if hasattr(model.config, "linear_num_value_heads") else []
    print(json.dumps({"seconds": seconds, "losses": losses, "peak": torch.cuda.max_memory_allocated(),
                      "missing": [package for package in wanted if is_missing(package)]}))


main()
