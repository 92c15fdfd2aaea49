"""Kinds of small models that conftest.write_model makes beside its own: each takes what all have in common, and gives
transformers' class and config."""


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


KINDS = dict(glm4=glm4, deepseek_v3=deepseek_v3)
