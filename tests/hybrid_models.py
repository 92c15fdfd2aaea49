"""Hybrids of GatedDeltaNet and softmax attention, small ones."""

HYBRIDS = ("qwen3_5", "qwen3_next", "qwen3_5_moe")
# A token's output of a recurrence is a sum of terms of about beta * |v| / sqrt(key dim) = 0.05 in these models, and nearly
# nothing where its query is orthogonal to the keys before it. The norm behind it then divides by next to nothing, and the
# roundings of the terms with it: with the usual 1e-6, what is left of a few tokens may be a hundred times as inexact as any
# other number here. An epsilon whose root, 0.03, is about the size of the terms bounds that by a factor of two, within the
# roundings of one pass (tolerance.py).
NORM_EPSILON = 1e-3


def hybrid(kind, shape, overrides):
    """transformers' class of such a model, and its config: the last of four layers has softmax attention."""
    from transformers import (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig,
                              Qwen3NextConfig, Qwen3NextForCausalLM)

    shape = shape | dict(hidden_size=64, head_dim=16, num_hidden_layers=4, linear_num_key_heads=3,
                         linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=8,
                         rms_norm_eps=NORM_EPSILON)
    shape |= dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.25))
    experts = dict(num_attention_heads=6, moe_intermediate_size=48, shared_expert_intermediate_size=40, num_experts=6,
                   num_experts_per_tok=2)
    if kind == "qwen3_5":
        shape |= dict(num_attention_heads=4, intermediate_size=128)
        return Qwen3_5ForCausalLM, Qwen3_5TextConfig(**shape | overrides)
    if kind == "qwen3_5_moe":
        return Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig(**shape | experts | overrides)
    shape |= dict(intermediate_size=96, mlp_only_layers=[1])  # which has no experts
    return Qwen3NextForCausalLM, Qwen3NextConfig(**shape | experts | overrides)
