"""What one step of a large model takes, counted on a null GPU: launches, waits of the host and the allocator's peak beside
the account of memory. Needs neither the memory nor the disk of the model: its file is a hole, and a null GPU's memory is a
range of addresses.

  python tests/null_cuda/large_step.py 7b-of-7-layers 32768 [key=value ...]

tools/roofline holds its formula of launches to such counts."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(pathlib.Path(__file__).parent), str(ROOT / "tests")]

import runs  # noqa: E402
from null_gpus import counts_of, null_environment, null_program  # noqa: E402

STEPS = 3
SHAPES = runs.SHAPES | {
    "7b": runs.SHAPES["7b-of-7-layers"] | {"num_hidden_layers": 28},
    # Two of the 48 layers of Qwen3-30B-A3B.
    "30b-a3b-of-2-layers": dict(kind="qwen3_moe", hidden_size=2048, num_hidden_layers=2, num_attention_heads=32,
                                num_key_value_heads=4, head_dim=128, moe_intermediate_size=768, num_experts=128,
                                num_experts_per_tok=8, vocab_size=151936),
    # Four of the 32 layers of Qwen3.5-9B: three GatedDeltaNets and an attention.
    "qwen3.5-9b-of-4-layers": {key: size for key, size in runs.SHAPES["qwen3.5-9b-of-4-layers"].items()
                               if key not in ("architectures", "model_type")} | dict(kind="qwen3_5"),
    # Four of the 48 layers of Qwen3-Next-80B-A3B, with an eighth of their experts.
    "qwen3-next-of-4-layers": dict(kind="qwen3_next", hidden_size=2048, num_hidden_layers=4, num_attention_heads=16,
                                   num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=32,
                                   linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
                                   full_attention_interval=4, mlp_only_layers=[], num_experts=64, num_experts_per_tok=10,
                                   moe_intermediate_size=512, shared_expert_intermediate_size=512, vocab_size=151936),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("tokens", type=int)
    parser.add_argument("keys", nargs="*", help="key=value of the run")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("null-cuda"), help="models, rows and logs")
    parser.add_argument("--memory", type=int, default=80, help="GiB of the GPU")
    parser.add_argument("--capability", default="90", choices=["80", "90"])
    parser.add_argument("--gpus", type=int, default=1, help="that share the row (with sequence_parallel_size as a key)")
    parser.add_argument("--config", action="append", default=[], metavar="KEY=NUMBER", help="of the shape, in place of its own")
    parser.add_argument("--without-kernels", action="store_true", help="passes over rows by ATen's operators")
    options = parser.parse_args()
    options.build, options.work = options.build.absolute(), options.work.absolute()
    if options.config:
        changed = {key: int(number) for key, number in (pair.split("=", 1) for pair in options.config)}
        shape, options.shape = options.shape, "-".join([options.shape, *options.config]).replace("=", "-")
        SHAPES[options.shape] = SHAPES[shape] | changed
    return options


def shapes_of_tensors(config):
    width, inner, vocabulary = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (vocabulary, width)
    for layer in range(config["num_hidden_layers"]):
        for name, rows, columns in (("self_attn.q_proj", width, width), ("self_attn.k_proj", kv, width),
                                    ("self_attn.v_proj", kv, width), ("self_attn.o_proj", width, width),
                                    ("mlp.gate_proj", inner, width), ("mlp.up_proj", inner, width),
                                    ("mlp.down_proj", width, inner)):
            yield f"model.layers.{layer}.{name}.weight", (rows, columns)
            if name[-6:] in ("q_proj", "k_proj", "v_proj"):
                yield f"model.layers.{layer}.{name}.bias", (rows,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", (width,)
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, width)


def make_model(options):
    """A folder whose weights are a hole of zeros."""
    from speed.workload import train_tokenizer

    folder = options.work / f"model-{options.shape}"
    if (folder / "config.json").exists():
        return
    if "kind" in SHAPES[options.shape]:
        from hole_model import write_hole

        write_hole(folder, **SHAPES[options.shape])
        train_tokenizer(folder)
        return
    train_tokenizer(folder)
    config = SHAPES[options.shape] | {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1048576, "rope_theta": 1000000.0, "use_sliding_window": False,
        "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    header, end = {}, 0
    for name, shape in shapes_of_tensors(config):
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(config))


def main():
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    runs.SHAPES.update(SHAPES)
    make_model(options)
    name = f"{options.shape}-{options.tokens}"
    keys = dict(pair.split("=", 1) for pair in options.keys) | {"device": "cuda", "max_steps": STEPS,
                                                                "nproc_per_node": options.gpus}
    if options.gpus > 1:
        keys["logging_steps"] = STEPS + 1  # a log line of several processes waits once more
    config = runs.settings(options, options.shape, options.tokens, name, save_only_model=True, **keys)
    report = options.work / f"report-{name}"
    report.mkdir(exist_ok=True)
    for old in report.glob("*.json"):
        old.unlink()
    environment = null_environment(options.build, options.gpus, report, NULL_CUDA_MEMORY=str(options.memory << 10),
                                   NULL_CUDA_CAPABILITY=options.capability)
    if options.without_kernels:
        environment["NULL_CUDA_MODULES"] = "refused"
    subprocess.run([null_program(options.build), "train", config], env=os.environ | environment, check=True)
    # Of the rank that launches most: those where the row has no labels have less to do. A launcher has nothing.
    counts = max(counts_of(report), key=lambda counts: sum(counts["launches"].values()))
    ends = counts["launches_at_waits"]
    steps = [after - before for before, after in zip(ends, ends[1:]) if after > before]
    memory = json.loads((options.work / name / "memory.json").read_text())
    print("waits:", counts["waits"])
    print("launches of each step:", steps[:STEPS])
    gib = 2**30
    print(f"allocated {memory['measured'][0]['device'] / gib:.2f} GiB at most, by the account {memory['device'] / gib:.2f}, "
          f"taken of the GPU {counts['peak_bytes'][0] / gib:.2f}")


if __name__ == "__main__":
    main()
