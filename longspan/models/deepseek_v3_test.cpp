#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/models/parameter_count.h"
#include "longspan/spec/file_tensors.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

/// The published config.json of DeepSeek-V3.
const testing::PublishedConfig kPublished(R"({
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": false, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": {
      "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
      "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                     "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
    "vocab_size": 129280
})");

ModelConfig read(const std::string& changes = "{}") { return kPublished.load(changes); }

const LatentAttentionSpec& mixer_of(const ModelSpec& spec) {
  return std::get<LatentAttentionSpec>(spec.layer(0).mixer);
}

TEST_CASE("deepseek_v3: DeepSeek-V3 has 671 026 419 200 numbers, with its routers' corrections") {
  const ModelConfig config = read();
  // A correction is a saved but untrained buffer: one element for each of 256 experts in 58 layers.
  constexpr int64_t kCorrections = 58 * 256;
  CHECK(parameter_count(config.spec) + kCorrections == 671026419200);
  // 37 billion parameters are active (arXiv 2412.19437), without the embedding.
  const auto active = static_cast<double>(parameter_count(config.spec) -
                                          idle_parameters_of(config.spec) - 129280 * 7168);
  CHECK(active * 1e-9 == doctest::Approx(37).epsilon(0.02));
}

TEST_CASE("deepseek_v3: what the config says of attention, layers and routers") {
  const ModelSpec spec = read().spec;
  const LatentAttentionSpec& mixer = mixer_of(spec);
  CHECK(mixer.attention.key_dim == 192);
  CHECK(mixer.attention.value_dim == 128);
  CHECK(mixer.attention.latent_dim == 576);
  // The square of YaRN's factor, on all elements of a head.
  const double mscale = 0.1 * std::log(40.0) + 1;
  CHECK(mixer.attention.scale == doctest::Approx(mscale * mscale / std::sqrt(192.0)));
  CHECK((mixer.rotary.pairs == RotaryPairs::kNeighbours));
  CHECK(rotary_kinds_of(spec)[0].dim == 64);
  CHECK(layers_with_experts(spec).size() == 58);
  CHECK(experts_of(spec.layer(2)) == nullptr);
  const RouterSpec& router = experts_of(spec.layer(3))->router;
  CHECK(router.num_groups == 8);
  CHECK(router.groups_per_token == 4);
  CHECK(router.scale == 2.5);
  CHECK(router.has_correction_bias);
  // The multi-token prediction layer is left out; there is none after it.
  CHECK(why_left_out(spec, "model.layers.61.eh_proj.weight") == LeftOut::kFurtherTokens);
  CHECK(why_left_out(spec, "model.layers.61.self_attn.kv_b_proj.weight") ==
        LeftOut::kFurtherTokens);
  CHECK_FALSE(why_left_out(spec, "model.layers.62.eh_proj.weight").has_value());
  using Names = std::vector<std::string>;
  const Names all = lora_targets(spec);
  CHECK(Names(all.begin(), all.begin() + 5) ==
        Names{"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"});
}

TEST_CASE("deepseek_v3: queries without a latent, halves, biases, no scaling") {
  const ModelSpec spec = read(R"({
    "q_lora_rank": null, "rope_interleave": false, "rope_scaling": null, "attention_bias": true
})")
                             .spec;
  const LatentAttentionSpec& mixer = mixer_of(spec);
  CHECK_FALSE(mixer.query_rank);
  CHECK((mixer.rotary.pairs == RotaryPairs::kHalves));
  CHECK(mixer.attention.scale == 1 / std::sqrt(192.0));
  const ParameterTable parameters(layer_parameters(spec, 0));
  CHECK(parameters.of("model.layers.0.self_attn.q_proj.weight").shape ==
        std::vector<int64_t>{128 * 192, 7168});
  CHECK(parameters.of("model.layers.0.self_attn.kv_a_proj_with_mqa.bias").num_elements() == 576);
  CHECK(parameters.of("model.layers.0.self_attn.o_proj.bias").num_elements() == 7168);
  // Any hidden size is valid, since heads have their own sizes.
  CHECK(read(R"({"num_attention_heads": 96, "num_key_value_heads": 96})").spec.hidden_size == 7168);
}

TEST_CASE("deepseek_v3: heads of GLM-5, of 256 numbers in keys and values") {
  const char* changes = R"({
    "hidden_size": 6144, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048,
    "qk_nope_head_dim": 192, "v_head_dim": 256, "n_group": 1, "topk_group": 1, "rope_scaling": null
})";
  const LatentAttentionSpec mixer = mixer_of(read(changes).spec);
  CHECK(mixer.attention.key_dim == 256);
  CHECK(mixer.attention.value_dim == 256);
  CHECK(mixer.attention.latent_dim == 576);  // of 64 x (256 + 256) elements of keys and values
  CHECK(mixer.attention.scale == 1 / 16.0);
}

TEST_CASE("deepseek_v3: with dropout in the adapter that expands latents, these do not travel") {
  const ModelSpec spec = read().spec;
  LoraShape shape;
  shape.modules = {"kv_b_proj"};
  CHECK(mixer_of(without_latent_exchange(spec, shape)).attention.latent_dim == 576);
  shape.dropout = 0.1;
  CHECK_FALSE(mixer_of(without_latent_exchange(spec, shape)).attention.latent_dim);
  shape.modules = {"q_b_proj"};
  CHECK(mixer_of(without_latent_exchange(spec, shape)).attention.latent_dim == 576);
}

TEST_CASE("deepseek_v3: matrices in fp8, and blocks of other sizes") {
  using Format = StoredNumbers::Format;
  CHECK(read().stored == StoredNumbers{.format = Format::kFp8});
  CHECK(read(R"({"quantization_config": null})").stored == StoredNumbers{});
  CHECK(read(R"({"quantization_config": {"quant_method": "fp8"}})").stored ==
        StoredNumbers{.format = Format::kFp8});
  CHECK(read(R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 96]}})")
            .stored ==
        StoredNumbers{.format = Format::kFp8, .block_rows = 64, .block_columns = 96});
  // Another quantization is refused later, with the folder's weights.
  CHECK(read(R"({"quantization_config": {"quant_method": "mxfp4"}})").stored == StoredNumbers{});
}

TEST_CASE("deepseek_v3: refusals") {
  const auto refused = [](const std::string& changes, const char* part) {
    CHECK_THROWS_WITH_AS(read(changes), doctest::Contains(part), UserError);
  };
  refused(R"({"num_key_value_heads": 8})", "num_key_value_heads is 8, and num_attention_heads 128");
  refused(R"({"qk_rope_head_dim": 7})", "qk_rope_head_dim 7 is odd");
  refused(R"({"kv_lora_rank": 0})", "kv_lora_rank is 0");
  refused(R"({"v_head_dim": 1099511627776})", "v_head_dim");
  refused(R"({"scoring_func": "softmax"})", "scoring_func softmax is not supported; sigmoid is");
  refused(R"({"topk_method": "greedy"})", "topk_method greedy is not supported");
  refused(R"({"moe_layer_freq": 2})", "moe_layer_freq 2 is not supported; 1 is");
  refused(R"({"first_k_dense_replace": 61})", "must be less than num_hidden_layers, 61");
  refused(R"({"n_group": 7})", "n_group is 7");
  const auto refused_fp8 = [&](const char* keys, const char* part) {
    refused(fmt::format(R"({{"quantization_config": {{"quant_method": "fp8", {}}}}})", keys), part);
  };
  refused_fp8(R"("fmt": "e5m2")", "quantization_config: fmt e5m2 is not supported; e4m3 is");
  refused_fp8(R"("weight_block_size": [128])", "weight_block_size [128] is not two numbers");
  refused_fp8(R"("weight_block_size": [128, 0])", "weight_block_size [128, 0] is not two numbers");
  refused_fp8(R"("weight_block_size": [1e3, 1])", "weight_block_size");
  refused(R"({"partial_rotary_factor": 0.5})", "whole heads are rotated");
}

}  // namespace
}  // namespace longspan
