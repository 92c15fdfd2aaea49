"""Small models of all families, by the names of their tests."""

from transformers import (DeepseekV3Config, Gemma3TextConfig, Glm4Config, Glm4MoeConfig, GptOssConfig, LlamaConfig,
                          MistralConfig, Phi3Config, Qwen2Config, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3Config,
                          Qwen3MoeConfig, Qwen3NextConfig)

from hybrid_models import NORM_EPSILON

LLAMA = dict(vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
             num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=256)
QWEN3_5 = dict(vocab_size=307, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
               num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
               linear_key_head_dim=16, linear_value_head_dim=8, max_position_embeddings=512, rms_norm_eps=NORM_EPSILON,
               rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25,
                                    mrope_section=[1, 1, 0], mrope_interleaved=True))
ORIGINAL = dict(original_max_position_embeddings=64)
QWEN3_MOE = dict(vocab_size=307, hidden_size=64, intermediate_size=96, moe_intermediate_size=24,
                 num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
                 num_experts=8, num_experts_per_tok=3, max_position_embeddings=512)
HYBRID_MOE = QWEN3_5 | dict(moe_intermediate_size=24, shared_expert_intermediate_size=20, num_experts=8,
                            num_experts_per_tok=3)
GLM4_MOE = QWEN3_MOE | dict(n_routed_experts=8)
GLM4_MOE.pop("num_experts")
DEEPSEEK_V3 = dict(vocab_size=307, hidden_size=64, intermediate_size=96, moe_intermediate_size=24, num_hidden_layers=3,
                   num_attention_heads=6, num_key_value_heads=6, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8,
                   v_head_dim=10, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
                   first_k_dense_replace=1, max_position_embeddings=512)
GPT_OSS = dict(vocab_size=307, hidden_size=64, intermediate_size=24, num_hidden_layers=3, num_attention_heads=6,
               num_key_value_heads=2, head_dim=16, num_local_experts=8, num_experts_per_tok=3, sliding_window=13,
               max_position_embeddings=512)
GEMMA3 = dict(vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, head_dim=32, query_pre_attn_scalar=24, sliding_window=13,
              max_position_embeddings=512)


def longrope():
    """Of heads of 16 numbers, anew for each model: transformers writes into what it is given."""
    return dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75,
                short_factor=[1.0, 1.0, 1.1, 1.3, 1.6, 2.0], long_factor=[1.2, 2.0, 3.5, 8.0, 14.0, 30.0])


PHI3_MINI = LLAMA | dict(num_attention_heads=4, pad_token_id=7)
CONFIGS = {
    "qwen2": Qwen2Config(vocab_size=307, hidden_size=112, intermediate_size=160,
                         num_hidden_layers=3, num_attention_heads=14, num_key_value_heads=2,
                         tie_word_embeddings=True, rope_theta=1e6, max_position_embeddings=512),
    "qwen2-untied": Qwen2Config(vocab_size=307, hidden_size=64, intermediate_size=96,
                                num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4),
    "qwen3": Qwen3Config(vocab_size=307, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
                         num_attention_heads=6, num_key_value_heads=2, head_dim=16,
                         tie_word_embeddings=True, rope_theta=1e6, max_position_embeddings=512),
    "qwen2-window": Qwen2Config(vocab_size=307, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
                                num_attention_heads=4, num_key_value_heads=2, use_sliding_window=True, sliding_window=13,
                                max_window_layers=1),
    "qwen3-window": Qwen3Config(vocab_size=307, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
                                num_attention_heads=6, num_key_value_heads=2, head_dim=16, use_sliding_window=True,
                                sliding_window=13, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "qwen3-moe": Qwen3MoeConfig(**QWEN3_MOE, norm_topk_prob=True),
    "qwen3-moe-some-dense": Qwen3MoeConfig(**QWEN3_MOE | dict(num_hidden_layers=5),
                                           decoder_sparse_step=2, mlp_only_layers=[3],
                                           attention_bias=True, tie_word_embeddings=True,
                                           use_sliding_window=True, sliding_window=30),
    "glm4-moe": Glm4MoeConfig(**GLM4_MOE, use_qk_norm=True, first_k_dense_replace=1, n_group=4, topk_group=2,
                              n_shared_experts=2, routed_scaling_factor=2.5, attention_bias=True),
    "glm4-moe-air": Glm4MoeConfig(**GLM4_MOE, first_k_dense_replace=0, norm_topk_prob=False, rope_theta=1e6),
    "glm4": Glm4Config(**LLAMA, head_dim=16, pad_token_id=7, attention_bias=True),
    "glm4-whole-heads": Glm4Config(**LLAMA, head_dim=12, pad_token_id=None, attention_bias=False, rope_parameters=dict(
        rope_type="yarn", factor=4.0, rope_theta=1e4, partial_rotary_factor=1.0, **ORIGINAL)),
    "deepseek-v3": DeepseekV3Config(**DEEPSEEK_V3, q_lora_rank=24, rope_parameters=dict(
        rope_type="yarn", factor=8.0, rope_theta=1e4, mscale=1.0, mscale_all_dim=0.7, **ORIGINAL)),
    "deepseek-v3-direct": DeepseekV3Config(**DEEPSEEK_V3 | dict(first_k_dense_replace=0, n_shared_experts=2), q_lora_rank=None,
                                           rope_interleave=False, attention_bias=True, norm_topk_prob=False),
    # Proportions of GLM-5's latent attention: heads of 192 + 64 numbers, values of as many.
    "deepseek-v3-glm5-heads": DeepseekV3Config(**DEEPSEEK_V3 | dict(
        num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=16,
        n_group=1, topk_group=1), q_lora_rank=32),
    "gpt-oss": GptOssConfig(**GPT_OSS, swiglu_limit=0.7),
    "gpt-oss-other": GptOssConfig(**GPT_OSS | dict(num_experts_per_tok=1), attention_bias=False, swiglu_alpha=1.3,
                                  tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e4),
                                  layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "llama": LlamaConfig(**LLAMA),
    "llama3": LlamaConfig(**LLAMA, rope_theta=5e5, tie_word_embeddings=True, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL)),
    "llama-linear": LlamaConfig(**LLAMA, rope_scaling=dict(rope_type="linear", factor=4.0)),
    "llama-yarn": LlamaConfig(**LLAMA, rope_scaling=dict(
        rope_type="yarn", factor=4.0, **ORIGINAL)),
    "llama-yarn-mscale": LlamaConfig(**LLAMA, rope_scaling=dict(
        rope_type="yarn", factor=8.0, beta_fast=16, beta_slow=2, mscale=0.7, mscale_all_dim=1.1,
        truncate=False, **ORIGINAL)),
    "llama-biases-head-dim": LlamaConfig(**LLAMA, head_dim=32, attention_bias=True, mlp_bias=True),
    "qwen3_5": Qwen3_5TextConfig(**QWEN3_5, tie_word_embeddings=True),
    "qwen3_5-heads": Qwen3_5TextConfig(**QWEN3_5 | dict(
        linear_num_key_heads=3, linear_num_value_heads=9, linear_key_head_dim=12, num_hidden_layers=5,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
        attention_bias=True, rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1e4,
                                                  partial_rotary_factor=0.5))),
    "qwen3_next": Qwen3NextConfig(**HYBRID_MOE),
    "qwen3_next-some-dense": Qwen3NextConfig(**HYBRID_MOE | dict(
        linear_num_key_heads=3, linear_num_value_heads=9, linear_key_head_dim=12, num_hidden_layers=5,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
        mlp_only_layers=[1, 2], norm_topk_prob=False, attention_bias=True,
        tie_word_embeddings=True, rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1e4,
                                                       partial_rotary_factor=0.5))),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(**HYBRID_MOE | dict(linear_num_value_heads=6)),
    "mistral": MistralConfig(**LLAMA, head_dim=16, rope_theta=1e6, sliding_window=None),
    "mistral-window": MistralConfig(**LLAMA, head_dim=16, sliding_window=13),
    "gemma3": Gemma3TextConfig(**GEMMA3, sliding_window_pattern=2),
    "gemma3-scaled": Gemma3TextConfig(
        **GEMMA3, layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        tie_word_embeddings=False, attention_bias=True, rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1e5),
            sliding_attention=dict(rope_type="default", rope_theta=2e3))),
    "phi3": Phi3Config(**LLAMA, rms_norm_eps=1e-5, pad_token_id=7, sliding_window=None,
                       rope_parameters=dict(rope_type="default", rope_theta=25e4, partial_rotary_factor=0.5)),
    "phi3-window": Phi3Config(**LLAMA, pad_token_id=7, sliding_window=17, rope_theta=25e4),
    # Rows that are shorter, and longer, than the positions that the model was made with.
    "phi3-longrope-short": Phi3Config(**PHI3_MINI, original_max_position_embeddings=128, rope_parameters=longrope(),
                                      tie_word_embeddings=True),
    "phi3-longrope-long": Phi3Config(**PHI3_MINI, original_max_position_embeddings=16, rope_parameters=longrope()),
}
