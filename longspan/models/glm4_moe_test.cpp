// GLM-4.5's mixtures of experts: published configs, layers outside the model, refusals.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/models/parameter_count.h"
#include "longspan/spec/file_tensors.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

using testing::billions;
using testing::PublishedConfig;

/// The published config.json of GLM-4.5-Air.
const PublishedConfig kPublished(R"({
    "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "pad_token_id": 151329, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "partial_rotary_factor": 0.5, "initializer_range": 0.02, "intermediate_size": 10944,
    "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408,
    "norm_topk_prob": true, "num_attention_heads": 96, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 128, "n_shared_experts": 1, "routed_scaling_factor": 1.0,
    "num_experts_per_tok": 8, "first_k_dense_replace": 1, "num_hidden_layers": 46,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 1000000, "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": false, "vocab_size": 151552
})");

TEST_CASE("glm4_moe: published models have the parameters that their makers say") {
  // 106 billion parameters, 12 active; 355 and 32 (arXiv 2508.06471, which counts the active ones
  // without the embeddings).
  const ModelConfig air = kPublished.load();
  CHECK(billions(parameter_count(air.spec)) == doctest::Approx(106).epsilon(0.01));
  CHECK(billions(parameter_count(air.spec) - idle_parameters_of(air.spec)) ==
        doctest::Approx(12).epsilon(0.12));
  const ModelConfig large = kPublished.load(R"({
    "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
    "n_routed_experts": 160, "first_k_dense_replace": 3, "num_hidden_layers": 92,
    "routed_scaling_factor": 2.5, "use_qk_norm": true
})");
  CHECK(billions(parameter_count(large.spec)) == doctest::Approx(355).epsilon(0.01));
  CHECK(billions(parameter_count(large.spec) - idle_parameters_of(large.spec)) ==
        doctest::Approx(32).epsilon(0.06));
}

TEST_CASE("glm4_moe: what the config says of layers and routers") {
  const ModelConfig config = kPublished.load();
  const ModelSpec& spec = config.spec;
  CHECK(config.rotary.dim == 64);
  CHECK(layers_with_experts(spec).size() == 45);
  CHECK(experts_of(spec.layer(0)) == nullptr);
  const MixtureOfExpertsSpec& experts = *experts_of(spec.layer(1));
  CHECK(experts.shared.intermediate_size == 1408);
  CHECK(experts.router.has_correction_bias);
  CHECK(kPublished.load(R"({"first_k_dense_replace": 0})").spec.pattern.size() == 1);
  // The multi-token prediction layer is left out; there is none after it.
  CHECK(why_left_out(spec, "model.layers.46.eh_proj.weight") == LeftOut::kFurtherTokens);
  CHECK_FALSE(why_left_out(spec, "model.layers.47.eh_proj.weight").has_value());
  CHECK_FALSE(why_left_out(spec, "model.layers.4.mlp.gate.weight").has_value());
  const ParameterTable parameters(layer_parameters(spec, 1));
  const ParameterSpec& bias = parameters.of("model.layers.1.mlp.gate.e_score_correction_bias");
  CHECK(is_buffer(bias.role));
  CHECK(bias.shape == std::vector<int64_t>{128});
}

TEST_CASE("glm4_moe: adapters of MLPs are on the experts that routers choose alone") {
  const ModelConfig config = kPublished.load();
  const std::set<std::string> all = lora_modules_from("all", config.spec);
  CHECK(all == std::set<std::string>{"k_proj", "o_proj", "q_proj", "v_proj", "gate_proj", "up_proj",
                                     "down_proj"});
  CHECK(passed_over(config.spec, all) ==
        std::vector<std::string>{"gate_proj", "up_proj", "down_proj"});
  CHECK(layer_parameters(config.spec, 0).size() > 7);  // a dense MLP
  for (const int64_t layer : {0, 1}) {
    for (const ParameterSpec& parameter : layer_parameters(config.spec, layer)) {
      CAPTURE(parameter.name);
      if (parameter.module != "mlp" || parameter.role != ParameterRole::kProjection) continue;
      CHECK(parameter.lora_target.empty() != parameter.expert.has_value());
    }
  }
}

TEST_CASE("glm4_moe: refusals") {
  CHECK(kPublished.says(R"({"n_group": 3})", "n_group is 3"));
  CHECK(kPublished.says(R"({"n_group": 128})", "n_group is 128"));
  CHECK(kPublished.says(R"({"n_group": 8, "topk_group": 9})",
                        "topk_group is 9, it must be at most n_group, 8"));
  CHECK(kPublished.says(R"({"n_group": 32, "topk_group": 1})",
                        "num_experts_per_tok is 8, it must be at most the 4 experts"));
  CHECK(kPublished.says(R"({"first_k_dense_replace": 46})",
                        "first_k_dense_replace is 46, it must be less than num_hidden_layers, 46"));
  CHECK(kPublished.says(R"({"num_nextn_predict_layers": 1000000})", "num_nextn_predict_layers"));
}

}  // namespace
}  // namespace longspan
