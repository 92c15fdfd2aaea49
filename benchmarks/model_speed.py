"""Supervised fine-tuning of models that are no plain dense decoders, Longspan beside transformers' Trainer: a hybrid of
GatedDeltaNet and attention, a mixture of experts, a model with sliding windows. Tokens/s and memory, as sft_speed.py
measures them."""

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from speed import workload
from speed.comparison import (
    Work, add_arguments, check_first_step, compare, numbers, own_builds, parse_options, prepare,
)
from speed.frameworks import Material
from speed.workload import TOKENIZER_SIZE, Case, make_checkpoint, make_rows

PEERS = ["transformers"]
D_MODEL, LAYERS = 512, 8
GROWTH_GOAL = 0.5  # Longspan's memory growth over transformers'
PASSES = 3  # a forward, and a backward of two


def common(vocab: int) -> dict:
    return {
        "vocab_size": vocab, "hidden_size": D_MODEL, "num_hidden_layers": LAYERS, "max_position_embeddings": 65536,
        "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_dropout": 0.0,
        "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
    }


def flops(case: Case, labels: int, parameters: float, attention: float, rule: float = 0.0) -> dict[str, float]:
    """Of a step on one row, as workload.py counts them. `parameters`: those that a token goes through; `attention`:
    heads x head dim x pairs of a query and a key that it sees, of all layers; `rule`: those of a token in the gated
    delta rule."""
    return {
        "blocks": PASSES * 2.0 * parameters * case.tokens, "attention": PASSES * 4.0 * attention,
        "delta rule": PASSES * rule * case.tokens, "head": PASSES * 2.0 * D_MODEL * case.vocab * labels,
    }


def causal_pairs(tokens: int) -> float:
    return tokens * (tokens + 1) / 2


# Three layers of GatedDeltaNet to one of attention, and ratios between width, MLP and heads as Qwen3.5-9B has them.
class Hybrid:
    MLP, HEADS, KV_HEADS, HEAD_DIM = 1536, 4, 1, 128
    KEY_HEADS, VALUE_HEADS, LINEAR_DIM, CHUNK = 4, 8, 64, 64

    @classmethod
    def config(cls, vocab: int) -> dict:
        return common(vocab) | {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "intermediate_size": cls.MLP,
            "num_attention_heads": cls.HEADS, "num_key_value_heads": cls.KV_HEADS, "head_dim": cls.HEAD_DIM,
            "hidden_act": "silu", "full_attention_interval": 4, "linear_num_key_heads": cls.KEY_HEADS,
            "linear_num_value_heads": cls.VALUE_HEADS, "linear_key_head_dim": cls.LINEAR_DIM,
            "linear_value_head_dim": cls.LINEAR_DIM, "linear_conv_kernel_dim": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        }

    @classmethod
    def flops(cls, case: Case, labels: int) -> dict[str, float]:
        softmax, linear, dim = LAYERS // 4, LAYERS - LAYERS // 4, cls.LINEAR_DIM
        keys, values = cls.KEY_HEADS * dim, cls.VALUE_HEADS * dim
        parameters = (LAYERS * 3 * D_MODEL * cls.MLP
                      + softmax * D_MODEL * cls.HEAD_DIM * (3 * cls.HEADS + 2 * cls.KV_HEADS)
                      + linear * D_MODEL * (2 * keys + 3 * values + 2 * cls.VALUE_HEADS))
        # The products of its chunks.
        rule = 2.0 * cls.VALUE_HEADS * dim * (3 * dim + 2 * cls.CHUNK) + 4.0 * cls.KEY_HEADS * cls.CHUNK * dim
        pairs = cls.HEADS * cls.HEAD_DIM * causal_pairs(case.tokens) * softmax
        return flops(case, labels, parameters, pairs, rule * linear)


# 32 experts of which a token goes to 4, with the ratios of width, expert and heads of Qwen3-30B-A3B. Its embeddings
# are so large that tokens differ: then random routers use all experts about alike, as trained ones do. With the
# usual small ones all tokens go to the same four.
class Experts:
    EMBEDDING_STD = 1.0
    EXPERT, EXPERTS, CHOSEN, HEADS, KV_HEADS, HEAD_DIM = 192, 32, 4, 8, 1, 64

    @classmethod
    def config(cls, vocab: int) -> dict:
        return common(vocab) | {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "intermediate_size": 1536,
            "moe_intermediate_size": cls.EXPERT, "num_experts": cls.EXPERTS, "num_experts_per_tok": cls.CHOSEN,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
            "num_attention_heads": cls.HEADS, "num_key_value_heads": cls.KV_HEADS, "head_dim": cls.HEAD_DIM,
            "rope_theta": 1e6, "use_sliding_window": False, "router_aux_loss_coef": 0.001,
            "output_router_logits": False, "tie_word_embeddings": False,
        }

    @classmethod
    def flops(cls, case: Case, labels: int) -> dict[str, float]:
        parameters = LAYERS * (D_MODEL * cls.HEAD_DIM * (2 * cls.HEADS + 2 * cls.KV_HEADS) + D_MODEL * cls.EXPERTS
                               + cls.CHOSEN * 3 * D_MODEL * cls.EXPERT)
        return flops(case, labels, parameters, cls.HEADS * cls.HEAD_DIM * causal_pairs(case.tokens) * LAYERS)


# Windows of 512 tokens in five of six layers, as Gemma 3 has them; its ratios of width, MLP and heads.
class Windows:
    MLP, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 1536, 4, 2, 128, 512

    @classmethod
    def layer_types(cls) -> list[str]:
        return ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(LAYERS)]

    @classmethod
    def config(cls, vocab: int) -> dict:
        return common(vocab) | {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "intermediate_size": cls.MLP,
            "num_attention_heads": cls.HEADS, "num_key_value_heads": cls.KV_HEADS, "head_dim": cls.HEAD_DIM,
            "query_pre_attn_scalar": cls.HEAD_DIM, "sliding_window": cls.WINDOW, "layer_types": cls.layer_types(),
            "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        }

    @classmethod
    def flops(cls, case: Case, labels: int) -> dict[str, float]:
        full = cls.layer_types().count("full_attention")
        seen = min(cls.WINDOW, case.tokens)
        window_pairs = causal_pairs(seen) + (case.tokens - seen) * seen
        parameters = LAYERS * (D_MODEL * cls.HEAD_DIM * (2 * cls.HEADS + 2 * cls.KV_HEADS) + 3 * D_MODEL * cls.MLP)
        pairs = full * causal_pairs(case.tokens) + (LAYERS - full) * window_pairs
        return flops(case, labels, parameters, cls.HEADS * cls.HEAD_DIM * pairs)


@dataclasses.dataclass(frozen=True)
class Kind:
    config: Callable[[int], dict]
    flops: Callable[[Case, int], dict[str, float]]
    tokens: int  # of a row
    speed_goal: float  # Longspan's tokens/s over transformers', for such rows
    embedding_std: float | None = None  # of input embeddings, where it is another than the config's
    vocab: int = TOKENIZER_SIZE
    answer_share: float = 0.9


EXPERTS = Kind(Experts.config, Experts.flops, 4096, 1.5, Experts.EMBEDDING_STD)
KINDS = {
    "hybrid": Kind(Hybrid.config, Hybrid.flops, 8192, 1.5),
    "experts": EXPERTS,
    # As many logits of a token as Qwen3-MoE has, of half of the row.
    "vocabulary": dataclasses.replace(EXPERTS, vocab=151936, answer_share=0.5),
    "windows": Kind(Windows.config, Windows.flops, 16384, 2.0),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", type=numbers(str), default=list(KINDS), help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--rows", type=int, help="tokens of a row (default: "
                        + ", ".join(f"{kind.tokens} of {name}" for name, kind in KINDS.items()) + ")")
    parser.add_argument("--checkpointing", choices=["on", "off", "both"], default="on")
    add_arguments(parser, PEERS)
    options = parse_options(parser, PEERS)
    for name in options.kinds:
        if name not in KINDS:
            parser.error(f"--kinds {name}: choose from {', '.join(KINDS)}")
    return options


def main() -> None:
    options = parse_arguments()
    setup, peer_versions = prepare(options, ["torch", "transformers"])
    names = own_builds(options) + options.peers
    works = []
    for kind_name in options.kinds:
        kind = KINDS[kind_name]
        workload.model_config = kind.config
        tokens = options.rows or kind.tokens
        for how in {"on": [True], "off": [False], "both": [False, True]}[options.checkpointing]:
            case = Case(tokens, kind.vocab, kind.answer_share, how)
            checkpoint = make_checkpoint(options.out / f"{kind_name}-{case.vocab}", case.vocab, kind.embedding_std)
            rows = options.out / f"{kind_name}-rows-{tokens}"
            labels = make_rows(rows, checkpoint, case, setup.steps)
            works.append(Work(Material(case, checkpoint, rows, labels), tokens,
                              {name: kind.flops(case, labels) for name in names},
                              f"{kind_name}: {case.name}: rows of {tokens} tokens, {labels} of them with a label "
                              f"(wanted: {kind.speed_goal:g}x the speed, {GROWTH_GOAL:g}x the growth)"))
    columns = {"kind": lambda w: w.heading.split(":")[0], "tokens": lambda w: w.case.tokens,
               "vocab": lambda w: w.case.vocab, "labels": lambda w: w.material.labels}
    compare(options, works, setup, peer_versions, columns,
            lambda runs: check_first_step(runs, "loss", absolute=2e-3), "model_speed")


if __name__ == "__main__":
    main()
