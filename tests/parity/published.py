"""Config.json of published models, without keys that say nothing of sizes, and how many parameters their makers' files
have. Layers that predict further tokens (multi-token prediction) are in none of these numbers: neither transformers nor
Longspan makes them."""

QWEN = dict(vocab_size=151936, max_position_embeddings=32768, rms_norm_eps=1e-6, rope_theta=1e6)
QWEN3 = dict(model_type="qwen3", **QWEN, head_dim=128, num_key_value_heads=8)
QWEN3_MOE = dict(model_type="qwen3_moe", **QWEN, head_dim=128, num_key_value_heads=4, num_experts=128,
                 num_experts_per_tok=8, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True)
LLAMA3 = dict(model_type="llama", vocab_size=128256, num_key_value_heads=8, rope_theta=5e5, rms_norm_eps=1e-5,
              max_position_embeddings=8192)
QWEN3_5 = dict(vocab_size=248320, head_dim=256, linear_num_key_heads=16, linear_key_head_dim=128,
               linear_value_head_dim=128, linear_conv_kernel_dim=4, full_attention_interval=4, rms_norm_eps=1e-6,
               max_position_embeddings=262144)
GLM4 = dict(model_type="glm4", vocab_size=151552, head_dim=128, num_key_value_heads=2, partial_rotary_factor=0.5,
            pad_token_id=151329, rms_norm_eps=1e-5, max_position_embeddings=32768, rope_theta=1e4)
GLM4_MOE = dict(model_type="glm4_moe", vocab_size=151552, head_dim=128, num_key_value_heads=8, num_attention_heads=96,
                attention_bias=True, n_shared_experts=1, num_experts_per_tok=8, n_group=1, topk_group=1,
                partial_rotary_factor=0.5, max_position_embeddings=131072, num_nextn_predict_layers=1)
GPT_OSS = dict(model_type="gpt_oss", vocab_size=201088, hidden_size=2880, intermediate_size=2880, head_dim=64,
               num_attention_heads=64, num_key_value_heads=8, num_experts_per_tok=4, attention_bias=True, sliding_window=128,
               pad_token_id=199999, max_position_embeddings=131072)
MISTRAL = dict(model_type="mistral", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, max_position_embeddings=32768, sliding_window=None, rms_norm_eps=1e-5)


def layers(count, hidden_size, intermediate_size, num_heads, **more):
    return dict(num_hidden_layers=count, hidden_size=hidden_size, intermediate_size=intermediate_size,
                num_attention_heads=num_heads, **more)


# By the model's name: its keys, and the number that its files say, where that is known and of the same tensors.
PUBLISHED = {
    "Qwen2.5-0.5B": (dict(model_type="qwen2", **QWEN, **layers(24, 896, 4864, 14), num_key_value_heads=2,
                          tie_word_embeddings=True), 494_032_768),
    "Qwen2.5-7B": (dict(model_type="qwen2", **QWEN | dict(vocab_size=152064), **layers(28, 3584, 18944, 28),
                        num_key_value_heads=4), 7_615_616_512),
    "Qwen3-0.6B": (dict(**QWEN3, **layers(28, 1024, 3072, 16), tie_word_embeddings=True), 596_049_920),
    "Qwen3-8B": (dict(**QWEN3, **layers(36, 4096, 12288, 32)), 8_190_735_360),
    "Qwen3-30B-A3B": (dict(**QWEN3_MOE, **layers(48, 2048, 6144, 32), moe_intermediate_size=768), 30_532_122_624),
    "Qwen3-235B-A22B": (dict(**QWEN3_MOE, **layers(94, 4096, 12288, 64), moe_intermediate_size=1536), 235_093_634_560),
    "Qwen3-Next-80B-A3B": (dict(QWEN3_5, model_type="qwen3_next", vocab_size=151936, **layers(48, 2048, 5120, 16),
                                num_key_value_heads=2, linear_num_value_heads=32, num_experts=512, num_experts_per_tok=10,
                                moe_intermediate_size=512, shared_expert_intermediate_size=512), None),
    "Qwen3.5-9B": (dict(QWEN3_5, model_type="qwen3_5_text", **layers(32, 4096, 12288, 16), num_key_value_heads=4,
                        linear_num_value_heads=32), None),
    "Qwen3.5-27B": (dict(QWEN3_5, model_type="qwen3_5_text", **layers(64, 5120, 17408, 24), num_key_value_heads=4,
                         linear_num_value_heads=48), None),
    "Qwen3.5-35B-A3B": (dict(QWEN3_5, model_type="qwen3_5_moe_text", **layers(40, 2048, 0, 16), num_key_value_heads=2,
                             linear_num_value_heads=32, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512,
                             shared_expert_intermediate_size=512), None),
    "Qwen3.5-397B-A17B": (dict(QWEN3_5, model_type="qwen3_5_moe_text", **layers(60, 4096, 0, 32), num_key_value_heads=2,
                               linear_num_value_heads=64, num_experts=512, num_experts_per_tok=10,
                               moe_intermediate_size=1024, shared_expert_intermediate_size=1024), None),
    "Llama-3.1-8B": (dict(**LLAMA3, **layers(32, 4096, 14336, 32)), 8_030_261_248),
    "Llama-3.2-1B": (dict(**LLAMA3, **layers(16, 2048, 8192, 32), head_dim=64, tie_word_embeddings=True), 1_235_814_400),
    "Mistral-7B-v0.1": (dict(**MISTRAL, vocab_size=32000), 7_241_732_096),
    "Mistral-7B-v0.3": (dict(**MISTRAL, vocab_size=32768), 7_248_023_552),
    "Gemma-3-1B": (dict(model_type="gemma3_text", vocab_size=262144, **layers(26, 1152, 6912, 4), num_key_value_heads=1,
                        head_dim=256, sliding_window=512, max_position_embeddings=32768), 999_885_952),
    # A model of texts and pictures: its language model, whose file leaves the defaults out.
    "Gemma-3-4B": (dict(model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
                        sliding_window=1024, rope_scaling=dict(rope_type="linear", factor=8.0)), None),
    "Phi-4": (dict(model_type="phi3", vocab_size=100352, **layers(40, 5120, 17920, 40), num_key_value_heads=10,
                   pad_token_id=100349, max_position_embeddings=16384, original_max_position_embeddings=16384,
                   sliding_window=None), 14_659_507_200),
    "GLM-4-9B-0414": (dict(**GLM4, **layers(40, 4096, 13696, 32), attention_bias=True), 9_400_279_040),
    "GLM-4-32B-0414": (dict(**GLM4, **layers(61, 6144, 23040, 48), attention_bias=False), 32_566_081_536),
    "GLM-4.5-Air": (dict(**GLM4_MOE, num_hidden_layers=46, hidden_size=4096, intermediate_size=10944, n_routed_experts=128,
                         moe_intermediate_size=1408, first_k_dense_replace=1, use_qk_norm=False), None),
    "GLM-4.5": (dict(**GLM4_MOE, num_hidden_layers=92, hidden_size=5120, intermediate_size=12288, n_routed_experts=160,
                     moe_intermediate_size=1536, first_k_dense_replace=3, use_qk_norm=True), None),
    "DeepSeek-V3": (dict(model_type="deepseek_v3", vocab_size=129280, **layers(61, 7168, 18432, 128), num_key_value_heads=128,
                         moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
                         n_group=8, topk_group=4, first_k_dense_replace=3, kv_lora_rank=512, q_lora_rank=1536,
                         qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, max_position_embeddings=163840,
                         num_nextn_predict_layers=1), None),
    "gpt-oss-20b": (dict(**GPT_OSS, num_hidden_layers=24, num_local_experts=32), 20_914_757_184),
    "gpt-oss-120b": (dict(**GPT_OSS, num_hidden_layers=36, num_local_experts=128), 116_829_156_672),
}
# Of all families, these files leave intermediate_size out.
for keys, _ in PUBLISHED.values():
    if keys.get("intermediate_size") == 0:
        del keys["intermediate_size"]
