"""Gives llama.cpp new weights: writes the LoRA adapter in LONGSPAN_PATH as GGUF, ends the server of the last call, and
starts llama_server.py with the adapter. A run starts and replaces its server by itself this way:

    pip install xllamacpp==2026.10.11549 gguf==0.19.0 safetensors numpy
    python examples/reinforcement/get_gguf.py models/SmolLM2-135M-Instruct.gguf
    longspan train examples/reinforcement/additions.yaml rollout=server rollout_server=llama_cpp \
      rollout_url=http://127.0.0.1:8012 rollout_update=command rollout_update_command="python \
      examples/reinforcement/llama_update.py 8012 models/SmolLM2-135M-Instruct.gguf"
    kill $(cat output/additions/llama/pid)
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

import gguf
from safetensors.numpy import load_file

port, model, folder = sys.argv[1], sys.argv[2], pathlib.Path(os.environ["LONGSPAN_PATH"])
ours = folder.parent.parent / "llama"  # LONGSPAN_PATH itself belongs to the run
ours.mkdir(exist_ok=True)
adapter, pid_file = ours / f"adapter-{os.environ['LONGSPAN_VERSION']}.gguf", ours / "pid"
pid = pid_file.read_text() if pid_file.exists() else "none"
if (command := pathlib.Path("/proc", pid, "cmdline")).exists() and "llama_server.py" in command.read_text():
    os.kill(int(pid), signal.SIGTERM)
for old in ours.glob("adapter-*.gguf"):
    old.unlink()

fields = gguf.GGUFReader(model).fields
heads = {"q_proj": fields["llama.attention.head_count"], "k_proj": fields["llama.attention.head_count_kv"]}
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, fields["llama.block_count"].contents())
writer = gguf.GGUFWriter(adapter, "llama")
writer.add_type("adapter")
writer.add_string("adapter.type", "lora")
writer.add_float32("adapter.lora.alpha", json.loads((folder / "adapter_config.json").read_text())["lora_alpha"])
for name, tensor in load_file(folder / "adapter_model.safetensors").items():
    module, part = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
    if part == "lora_B" and (count := heads.get(module.rsplit(".", 1)[1])):  # GGUF interleaves the halves of a head
        tensor = tensor.reshape(count.contents(), 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
    writer.add_tensor(f"{names.get_name(module)}.weight.{part.lower()}", tensor)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

start = [sys.executable, pathlib.Path(__file__).with_name("llama_server.py"), port, model, adapter]
with open(ours / "log", "wb") as log:  # the streams of this command are closed with it
    server = subprocess.Popen(start, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
pid_file.write_text(str(server.pid))
while server.poll() is None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/lora-adapters", timeout=10) as answer:
            if [one["path"] for one in json.load(answer)] == [str(adapter)]:
                sys.exit(0)
    except OSError:
        pass
    time.sleep(0.1)
sys.exit(f"the server has ended: {log.name}")
