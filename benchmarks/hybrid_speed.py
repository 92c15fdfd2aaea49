"""Supervised fine-tuning of a Qwen3.5-shaped hybrid on long rows, Longspan beside transformers' Trainer: tokens/s and
memory, as sft_speed.py measures them."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed import workload
from speed.comparison import Work, add_arguments, check_first_step, compare, numbers, parse_options, prepare
from speed.frameworks import Material
from speed.workload import TOKENIZER_SIZE, Case, make_checkpoint, make_rows

PEERS = ["transformers"]
# Three layers of GatedDeltaNet to one of attention, and ratios between width, MLP and heads as Qwen3.5-9B has them.
D_MODEL, D_MLP, LAYERS = 512, 1536, 8
HEADS, KV_HEADS, HEAD_DIM = 4, 1, 128
KEY_HEADS, VALUE_HEADS, LINEAR_DIM, CONV = 4, 8, 64, 4
CHUNK = 64


def hybrid_config(vocab: int) -> dict:
    return {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": vocab,
        "hidden_size": D_MODEL, "intermediate_size": D_MLP, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu",
        "max_position_embeddings": 65536, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": True, "attention_dropout": 0.0, "full_attention_interval": 4,
        "linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": VALUE_HEADS, "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM, "linear_conv_kernel_dim": CONV, "torch_dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
    }


def flops_of(case: Case, labels: int) -> dict[str, float]:
    """Of a step on one row, as workload.py counts them; of the gated delta rule the products of its chunks."""
    tokens, passes = case.tokens, 3
    softmax, linear = LAYERS // 4, LAYERS - LAYERS // 4
    keys, values = KEY_HEADS * LINEAR_DIM, VALUE_HEADS * LINEAR_DIM
    parameters = (LAYERS * 3 * D_MODEL * D_MLP + softmax * D_MODEL * HEAD_DIM * (3 * HEADS + 2 * KV_HEADS)
                  + linear * D_MODEL * (2 * keys + 3 * values + 2 * VALUE_HEADS))
    rule = 2.0 * VALUE_HEADS * LINEAR_DIM * (3 * LINEAR_DIM + 2 * CHUNK) + 4.0 * KEY_HEADS * CHUNK * LINEAR_DIM
    return {
        "blocks": passes * 2.0 * parameters * tokens,
        "attention": passes * 4.0 * HEADS * HEAD_DIM * (tokens * (tokens + 1) / 2) * softmax,
        "delta rule": passes * rule * tokens * linear,
        "head": passes * 2.0 * D_MODEL * case.vocab * labels,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=numbers(int), default=[8192], help="tokens of a row (default 8192)")
    parser.add_argument("--checkpointing", choices=["on", "off", "both"], default="on")
    add_arguments(parser, PEERS)
    return parse_options(parser, PEERS)


def main() -> None:
    options = parse_arguments()
    workload.model_config = hybrid_config
    setup, peer_versions = prepare(options, ["torch", "transformers"])
    names = ([] if options.no_longspan else ["longspan"]) + options.peers
    works = []
    for tokens in options.rows:
        for how in {"on": [True], "off": [False], "both": [False, True]}[options.checkpointing]:
            case = Case(tokens, TOKENIZER_SIZE, 0.9, how)
            checkpoint = make_checkpoint(options.out / f"hybrid-{case.vocab}", case.vocab)
            rows = options.out / f"hybrid-rows-{tokens}"
            labels = make_rows(rows, checkpoint, case, setup.steps)
            works.append(Work(Material(case, checkpoint, rows, labels), tokens,
                              {name: flops_of(case, labels) for name in names},
                              f"{case.name}: rows of {tokens} tokens, {labels} of them with a label"))
    columns = {"tokens": lambda w: w.case.tokens, "labels": lambda w: w.material.labels}
    compare(options, works, setup, peer_versions, columns,
            lambda runs: check_first_step(runs, "loss", absolute=2e-3), "hybrid_speed")


if __name__ == "__main__":
    main()
