"""Serves a GGUF file with the llama.cpp of the package xllamacpp, with a LoRA adapter as GGUF where one is given. The
same as `llama-server --model MODEL.gguf --lora ADAPTER.gguf --port PORT --parallel 8 --ctx-size 2048`:

    pip install xllamacpp==2026.10.11549
    python examples/reinforcement/llama_server.py PORT MODEL.gguf [ADAPTER.gguf]
"""

import os
import signal
import sys

import xllamacpp

if len(sys.argv) not in (3, 4):
    sys.exit("usage: llama_server.py PORT MODEL.gguf [ADAPTER.gguf]")
params = xllamacpp.CommonParams()
params.port = int(sys.argv[1])
params.model.path = sys.argv[2]
params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in sys.argv[3:]]
params.n_parallel = 8  # answers at a time, as rollout_concurrency
params.n_ctx = 8 * 256  # tokens of a prompt and its answer, for each of them
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cpuparams.n_threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count()))
server = xllamacpp.Server(params)
print("listening at", server.listening_address, flush=True)
signal.pause()
