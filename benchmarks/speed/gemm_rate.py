"""The machine's fp32 GEMM rate: torch.mm at the model's shapes and at a large square one. Prints
JSON, in FLOP/s. The best of many short blocks, since whatever else the machine does only lowers a
block. One thread is timed by its processor time. Usage: gemm_rate.py THREADS TOKENS D_MODEL D_MLP"""

import json
import sys
import time

import torch


def rate(rows, inner, columns, seconds=0.8):
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    out = torch.empty(rows, columns)
    torch.mm(a, b, out=out)
    now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best, stop = 0.0, now() + seconds
    while now() < stop:
        begin = now()
        count = 0
        while now() - begin < 0.04:
            torch.mm(a, b, out=out)
            count += 1
        best = max(best, 2.0 * rows * inner * columns * count / (now() - begin))
    return best


threads, tokens, d_model, d_mlp = map(int, sys.argv[1:])
torch.set_num_threads(threads)
print(json.dumps({
    "model_shape": rate(tokens, d_model, d_mlp),
    "square_2048": rate(2048, 2048, 2048),
}))
