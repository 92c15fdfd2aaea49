// Qwen3-Next: the published config, layers with and without experts, refusals.
#include <doctest/doctest.h>

#include <string>
#include <variant>

#include "longspan/base/user_error.h"
#include "longspan/models/parameter_count.h"
#include "longspan/spec/file_tensors.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

using testing::billions;

/// config.json of Qwen3-Next-80B-A3B: the defaults of transformers for this family.
const testing::PublishedConfig kPublished(R"({
    "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false,
    "decoder_sparse_step": 1, "full_attention_interval": 4, "head_dim": 256,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next",
    "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16,
    "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
    "rope_theta": 10000000, "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": false, "vocab_size": 151936
})");

ModelConfig load(const std::string& changes = "{}") { return kPublished.load(changes); }

void refused(const std::string& changes, const char* part) {
  CHECK_THROWS_WITH_AS(load(changes), doctest::Contains(part), UserError);
}

TEST_CASE("qwen3_next: the published model has the parameters that its makers say") {
  // 80 billion parameters, 79 without the embeddings, 3 active (the model's card).
  const ModelConfig config = load();
  const int64_t all = parameter_count(config.spec), embeddings = 2 * 151936 * 2048;
  CHECK(billions(all) == doctest::Approx(80).epsilon(0.005));
  CHECK(billions(all - embeddings) == doctest::Approx(79).epsilon(0.005));
  const int64_t active = all - embeddings - idle_parameters_of(config.spec);
  CHECK(billions(active) > 3);
  CHECK(billions(active) < 3.5);
}

TEST_CASE("qwen3_next: layers") {
  const ModelSpec spec = load().spec;
  CHECK(spec.pattern.size() == 4);
  const auto& net = std::get<GatedDeltaNetSpec>(spec.layer(0).mixer);
  CHECK(net.projections == GatedDeltaNetSpec::Projections::kByKeyHeads);
  CHECK(net.num_value_heads == 32);
  const auto& experts = std::get<MixtureOfExpertsSpec>(spec.layer(0).feed_forward);
  CHECK(experts.router.normalises);
  CHECK(experts.shared ==
        SharedExpertSpec{.intermediate_size = 512, .name = "shared_expert", .is_gated = true});
  const ParameterTable parameters(parameters_of(spec));
  using Shape = std::vector<int64_t>;
  const std::string layer = "model.layers.0.";
  CHECK(parameters.of(layer + "linear_attn.in_proj_qkvz.weight").shape == Shape{12288, 2048});
  CHECK(parameters.of(layer + "linear_attn.in_proj_ba.weight").shape == Shape{64, 2048});
  CHECK(parameters.of(layer + "mlp.shared_expert.down_proj.weight").shape == Shape{2048, 512});
  CHECK(parameters.of(layer + "mlp.shared_expert_gate.weight").shape == Shape{1, 2048});
  // Its files also hold multi-token prediction layers.
  CHECK(why_left_out(spec, "mtp.layers.0.mlp.gate.weight") == LeftOut::kFurtherTokens);
  CHECK_FALSE(why_left_out(spec, layer + "mlp.gate.weight").has_value());

  const ModelSpec some =
      load(R"({"num_hidden_layers": 6, "mlp_only_layers": [3], "decoder_sparse_step": 2})").spec;
  CHECK(layers_with_experts(some) == std::vector<int64_t>{1, 5});
  CHECK(std::get<GatedMlpSpec>(some.layer(3).feed_forward).intermediate_size == 5120);
  CHECK(std::holds_alternative<SelfAttentionSpec>(some.layer(3).mixer));
  CHECK(std::holds_alternative<GatedDeltaNetSpec>(some.layer(5).mixer));
}

TEST_CASE("qwen3_next: a stranger's config makes no list that is longer than the model") {
  // Patterns of 4095 and of 1000 layers together repeat only after 819,000.
  const std::string changes =
      R"({"full_attention_interval": 4095, "num_hidden_layers": 1000, "mlp_only_layers": [1]})";
  CHECK(load(changes).spec.pattern.size() == 1000);
}

TEST_CASE("qwen3_next: refusals") {
  refused(R"({"num_experts_per_tok": 513})",
          "num_experts_per_tok is 513, it must be at most the 512 experts");
  refused(R"({"shared_expert_intermediate_size": 0})", "shared_expert_intermediate_size is 0");
  refused(R"({"shared_expert_intermediate_size": null})",
          "shared_expert_intermediate_size is missing");
  refused(R"({"mlp_only_layers": ["a"]})", "mlp_only_layers must be a list");
  refused(R"({"linear_num_value_heads": 24})", "linear_num_value_heads 24 is not a multiple");
  refused(R"({"attn_output_gate": false})", "attn_output_gate: false");
}

}  // namespace
}  // namespace longspan
