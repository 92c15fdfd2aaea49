"""Kinds of small models that conftest.write_model makes: each takes what all have in common and what a test asks for, and
gives transformers' class and config. Hybrids are in hybrid_models.py."""

import gpt_oss


def qwen2(shape):
    """14 query and 2 kv heads, and the embedding as the head."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    own = dict(hidden_size=112, intermediate_size=160, num_attention_heads=14, tie_word_embeddings=True)
    return Qwen2ForCausalLM, Qwen2Config(**own | shape)


def qwen3(shape):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    own = dict(hidden_size=96, intermediate_size=160, num_attention_heads=6, head_dim=16)
    return Qwen3ForCausalLM, Qwen3Config(**own | shape)


def llama(shape):
    """Its positions are stretched."""
    from transformers import LlamaConfig, LlamaForCausalLM

    own = dict(hidden_size=64, intermediate_size=160, num_attention_heads=8,
               rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=64))
    return LlamaForCausalLM, LlamaConfig(**own | shape)


def mistral(shape):
    """With a window."""
    from transformers import MistralConfig, MistralForCausalLM

    own = dict(hidden_size=64, intermediate_size=160, num_attention_heads=4, sliding_window=24)
    return MistralForCausalLM, MistralConfig(**own | shape)


def gemma3(shape):
    """With a window in one layer of two."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    own = dict(hidden_size=64, intermediate_size=160, num_attention_heads=4, head_dim=32, query_pre_attn_scalar=24,
               sliding_window=24, layer_types=["sliding_attention", "full_attention"])
    return Gemma3ForCausalLM, Gemma3TextConfig(**own | shape)


def phi3(shape):
    from transformers import Phi3Config, Phi3ForCausalLM

    own = dict(hidden_size=64, intermediate_size=160, num_attention_heads=4, sliding_window=None)
    return Phi3ForCausalLM, Phi3Config(**own | shape)


def qwen3_moe(shape):
    """6 experts, of which a token goes to 2."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    own = dict(hidden_size=64, intermediate_size=96, num_attention_heads=6, head_dim=16, moe_intermediate_size=48,
               num_experts=6, num_experts_per_tok=2, norm_topk_prob=True)
    return Qwen3MoeForCausalLM, Qwen3MoeConfig(**own | shape)


def glm4_moe(shape):
    """A dense layer and one of experts in groups."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    own = dict(hidden_size=64, intermediate_size=96, num_attention_heads=6, head_dim=16, use_qk_norm=True,
               moe_intermediate_size=48, n_routed_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2,
               first_k_dense_replace=1, routed_scaling_factor=1.5)
    return Glm4MoeForCausalLM, Glm4MoeConfig(**own | shape)


def glm4(shape):
    from transformers import Glm4Config, Glm4ForCausalLM

    own = dict(hidden_size=64, intermediate_size=160, num_attention_heads=4, head_dim=16, attention_bias=True)
    return Glm4ForCausalLM, Glm4Config(**own | shape)


def deepseek_v3(shape):
    """A dense layer and one of experts in groups; positions are stretched, which scales scores too."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    shape = dict(shape, num_key_value_heads=shape.get("num_attention_heads", 6))
    own = dict(hidden_size=64, intermediate_size=96, num_attention_heads=6, q_lora_rank=24, kv_lora_rank=20,
               qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, moe_intermediate_size=48, n_routed_experts=6,
               num_experts_per_tok=2, n_group=3, topk_group=2, first_k_dense_replace=1, routed_scaling_factor=1.5,
               rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, mscale=1.0, mscale_all_dim=0.8,
                                    original_max_position_embeddings=512))
    return DeepseekV3ForCausalLM, DeepseekV3Config(**own | shape)


KINDS = dict(qwen2=qwen2, qwen3=qwen3, llama=llama, mistral=mistral, gemma3=gemma3, phi3=phi3, qwen3_moe=qwen3_moe,
             glm4_moe=glm4_moe, glm4=glm4, deepseek_v3=deepseek_v3, gpt_oss=gpt_oss.small)
