"""Published models of texts and pictures: the number of parameters is that of transformers' model."""

import json
import subprocess

import torch
import transformers
from conftest import BUILD

PROBE = BUILD / "vision_probe"
VISION_2_5 = dict(depth=32, hidden_act="silu", hidden_size=1280, intermediate_size=3420, num_heads=16, in_chans=3, patch_size=14,
                  spatial_merge_size=2, spatial_patch_size=14, window_size=112, fullatt_block_indexes=[7, 15, 23, 31],
                  tokens_per_second=2, temporal_patch_size=2)
FLAT = dict(max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6, hidden_act="silu",
            rope_scaling=dict(type="mrope", mrope_section=[16, 24, 24]))
QWEN3_ROPE = dict(rope_theta=5e6, rope_scaling=dict(rope_type="default", mrope_section=[24, 20, 20], mrope_interleaved=True))


def qwen2(vocab_size, hidden_size, intermediate_size, count, heads, kv_heads):
    return dict(FLAT, vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=intermediate_size,
                num_hidden_layers=count, num_attention_heads=heads, num_key_value_heads=kv_heads)


def vision_2(hidden_size):
    return dict(depth=32, embed_dim=1280, mlp_ratio=4, num_heads=16, in_chans=3, hidden_size=hidden_size, patch_size=14,
                spatial_merge_size=2, spatial_patch_size=14, temporal_patch_size=2)


def qwen3(hidden_size, intermediate_size, count, heads, kv_heads, **more):
    return dict(QWEN3_ROPE, vocab_size=151936, hidden_size=hidden_size, intermediate_size=intermediate_size,
                num_hidden_layers=count, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=128,
                max_position_embeddings=262144, rms_norm_eps=1e-6, **more)


def vision_3(out_hidden_size, depth=24, hidden_size=1024, intermediate_size=4096, deepstack=(5, 11, 17)):
    return dict(depth=depth, hidden_size=hidden_size, intermediate_size=intermediate_size, num_heads=16, patch_size=16,
                in_channels=3, spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=2304,
                hidden_act="gelu_pytorch_tanh", out_hidden_size=out_hidden_size, deepstack_visual_indexes=list(deepstack))


def gemma3(hidden_size, intermediate_size, count, **more):
    vision = dict(model_type="siglip_vision_model", hidden_size=1152, image_size=896, intermediate_size=4304,
                  num_attention_heads=16, num_hidden_layers=27, patch_size=14, vision_use_head=False)
    text = dict(model_type="gemma3_text", hidden_size=hidden_size, intermediate_size=intermediate_size,
                num_hidden_layers=count, sliding_window=1024, rope_scaling=dict(factor=8.0, rope_type="linear"), **more)
    return dict(model_type="gemma3", boi_token_index=255999, eoi_token_index=256000, image_token_index=262144,
                initializer_range=0.02, mm_tokens_per_image=256, text_config=text, vision_config=vision)


LARGE_3 = dict(depth=27, hidden_size=1152, intermediate_size=4304, deepstack=(8, 16, 24))
# As published, without keys that say nothing of sizes.
PUBLISHED = {
    "Qwen2-VL-2B": dict(qwen2(151936, 1536, 8960, 28, 12, 2), model_type="qwen2_vl", tie_word_embeddings=True,
                        vision_config=vision_2(1536)),
    "Qwen2-VL-7B": dict(qwen2(152064, 3584, 18944, 28, 28, 4), model_type="qwen2_vl", tie_word_embeddings=False,
                        vision_config=vision_2(3584)),
    "Qwen2.5-VL-3B": dict(qwen2(151936, 2048, 11008, 36, 16, 2), model_type="qwen2_5_vl", tie_word_embeddings=True,
                          vision_config=dict(VISION_2_5, out_hidden_size=2048)),
    "Qwen2.5-VL-7B": dict(qwen2(152064, 3584, 18944, 28, 28, 4), model_type="qwen2_5_vl", tie_word_embeddings=False,
                          vision_config=dict(VISION_2_5, out_hidden_size=3584)),
    "Qwen3-VL-2B": dict(model_type="qwen3_vl", tie_word_embeddings=True, vision_config=vision_3(2048),
                        text_config=qwen3(2048, 6144, 28, 16, 8, tie_word_embeddings=True)),
    "Qwen3-VL-4B": dict(model_type="qwen3_vl", tie_word_embeddings=True, vision_config=vision_3(2560),
                        text_config=qwen3(2560, 9728, 36, 32, 8, tie_word_embeddings=True)),
    "Qwen3-VL-8B": dict(model_type="qwen3_vl", tie_word_embeddings=False, vision_config=vision_3(4096, **LARGE_3),
                        text_config=qwen3(4096, 12288, 36, 32, 8)),
    "Qwen3-VL-30B-A3B": dict(model_type="qwen3_vl_moe", tie_word_embeddings=False, vision_config=vision_3(2048, **LARGE_3),
                             text_config=qwen3(2048, 6144, 48, 32, 4, num_experts=128, num_experts_per_tok=8,
                                               moe_intermediate_size=768, norm_topk_prob=True, decoder_sparse_step=1,
                                               mlp_only_layers=[])),
    "Gemma-3-4B": gemma3(2560, 10240, 34),
    "Gemma-3-12B": gemma3(3840, 15360, 48, num_attention_heads=16, num_key_value_heads=8),
    "Gemma-3-27B": gemma3(5376, 21504, 62, num_attention_heads=32, num_key_value_heads=16, head_dim=128,
                          query_pre_attn_scalar=168),
}


def test_published_sizes(tmp_path):
    folders = []
    for name, keys in PUBLISHED.items():
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        (folders[-1] / "config.json").write_text(json.dumps(keys))
    said = subprocess.run([PROBE, "count", *(folder / "config.json" for folder in folders)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    for folder, ours in zip(folders, said.stdout.split(), strict=True):
        config = transformers.AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = transformers.AutoModelForImageTextToText.from_config(config)
        assert int(ours) == sum(parameter.numel() for parameter in model.parameters()), folder.name
