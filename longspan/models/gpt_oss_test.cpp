// gpt-oss: published configs, storage of the experts, refusals.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <variant>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/models/parameter_count.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

using testing::billions;
using testing::PublishedConfig;

/// Returns the types of `num_layers` layers that alternate, beginning with a window.
std::string alternating(int num_layers) {
  std::vector<std::string> types;
  for (int i = 0; i < num_layers; ++i) {
    types.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  return fmt::format(R"({{"num_hidden_layers": {}, "layer_types": {}}})", num_layers,
                     testing::json_list(types));
}

/// The published config.json of gpt-oss-20b.
const PublishedConfig kPublished = PublishedConfig(R"({
    "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
    "pad_token_id": 199999,
    "quantization_config": {
      "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                 "model.embed_tokens", "lm_head"],
      "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                     "original_max_position_embeddings": 4096, "rope_type": "yarn",
                     "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 201088
})")
                                       .with(alternating(24));

TEST_CASE("gpt_oss: published models have the parameters that their makers say") {
  // 3.6 and 5.1 billion of them are active, without the embedding (arXiv 2508.10925, table 1).
  const ModelConfig small = kPublished.load();
  const ModelConfig large = kPublished.with(alternating(36)).load(R"({"num_local_experts": 128})");
  CHECK(parameter_count(small.spec) == 20914757184);
  CHECK(parameter_count(large.spec) == 116829156672);
  const auto active = [](const ModelConfig& config) {
    return billions(parameter_count(config.spec) - idle_parameters_of(config.spec) -
                    config.spec.vocab_size * config.spec.hidden_size);
  };
  CHECK(active(small) == doctest::Approx(3.61).epsilon(0.002));
  CHECK(active(large) == doctest::Approx(5.13).epsilon(0.002));
}

TEST_CASE("gpt_oss: attention, rotation, router and experts as published") {
  const ModelConfig config = kPublished.load();
  const ModelSpec& spec = config.spec;
  const auto attentions = attentions_of(spec);
  REQUIRE(attentions.size() == 2);
  CHECK(attentions[0].first.window == 128);
  CHECK_FALSE(attentions[1].first.window);
  for (const auto& [attention, number] : attentions) {
    CHECK(number == 12);
    CHECK(attention.has_sinks);
  }
  CHECK((config.rotary.scaling.type == RopeScaling::Type::kYarn));
  CHECK_FALSE(config.rotary.scaling.truncate);
  CHECK(config.rotary.theta == 150000);
  // As in transformers: 64 if the key is missing, hidden_size / heads if it is null.
  const auto head_dim = [](const ModelConfig& of) {
    return attentions_of(of.spec)[0].first.key_dim;
  };
  CHECK(head_dim(kPublished.without({"head_dim"}).load(R"({"num_attention_heads": 40})")) == 64);
  CHECK(head_dim(kPublished.load(R"({"head_dim": null, "num_attention_heads": 40})")) == 72);
  CHECK(config.stored == StoredNumbers{.format = StoredNumbers::Format::kMxfp4});
  const MixtureOfExpertsSpec& experts = *experts_of(spec.layer(0));
  CHECK(std::get<ClampedSwiglu>(experts.activation) == ClampedSwiglu{1.702, 7.0});
  CHECK(experts.bias);
  CHECK_FALSE(config.router_aux_loss_coef);
  CHECK(kPublished.load(R"({"output_router_logits": true})").router_aux_loss_coef == 0.9);
  // Missing keys have the defaults of transformers for this family.
  const ModelSpec silent =
      kPublished
          .without({"layer_types", "rope_scaling", "rope_theta", "sliding_window", "swiglu_limit",
                    "num_key_value_heads", "attention_bias"})
          .load()
          .spec;
  CHECK(silent.layer(0) == spec.layer(0));
  CHECK(silent.layer(1) == spec.layer(1));
  CHECK(attentions_of(
            kPublished.load(R"({"num_hidden_layers": 1, "layer_types": ["full_attention"]})").spec)
            .size() == 1);
}

TEST_CASE("gpt_oss: parts of a stored tensor follow each other and make all of it") {
  const ModelSpec spec = kPublished.load().spec;
  int64_t next = 0;
  std::vector<std::string> stored;
  for (const ParameterSpec& parameter : layer_parameters(spec, 3)) {
    if (!parameter.stored_part) continue;
    if (begins_stored(parameter)) {
      CHECK((stored.empty() || next == 32));
      stored.push_back(parameter.stored_as);
      next = 0;
    }
    CHECK(parameter.stored_as == stored.back());
    CHECK(parameter.stored_part->begin == next++);
  }
  CHECK(next == 32);
  const std::string experts = "model.layers.3.mlp.experts.";
  CHECK(stored == std::vector<std::string>{experts + "gate_up_proj", experts + "gate_up_proj_bias",
                                           experts + "down_proj", experts + "down_proj_bias"});
  const ParameterTable parameters(layer_parameters(spec, 3));
  const ParameterSpec& matrix = parameters.of(experts + "7.gate_up_proj.weight");
  CHECK(matrix.shape == std::vector<int64_t>{5760, 2880});
  CHECK(stored_shape(matrix) == std::vector<int64_t>{32, 2880, 5760});
  CHECK(stored_shape(parameters.of(experts + "7.down_proj.bias")) ==
        std::vector<int64_t>{32, 2880});
  CHECK_FALSE(parameters.of(experts + "7.down_proj.bias").decays);
  CHECK(parameters.of("model.layers.3.mlp.router.bias").shape == std::vector<int64_t>{32});
  CHECK(parameters.of("model.layers.3.self_attn.sinks").shape == std::vector<int64_t>{64});
}

TEST_CASE("gpt_oss: refusals") {
  CHECK(kPublished.says(R"({"num_experts_per_tok": 33})",
                        "num_experts_per_tok is 33, it must be at most the 32 experts"));
  CHECK(kPublished.says(R"({"layer_types": ["full_attention"]})",
                        "layer_types must be a list of one kind for each of 24 layers"));
  CHECK(kPublished.says(R"({"sliding_window": null})",
                        "sliding_window is null, and layer_types has sliding_attention"));
  CHECK(kPublished.says(R"({"sliding_window": 0})", "sliding_window is 0"));
  CHECK(kPublished.says(R"({"swiglu_limit": 0})", "swiglu_limit is 0, it must be positive"));
  CHECK(kPublished.says(R"({"hidden_size": 2888})", "must be multiples of 32"));
  CHECK(kPublished.load(R"({"hidden_size": 2888, "quantization_config": null})").spec.hidden_size ==
        2888);
  CHECK(kPublished.says(R"({"num_attention_heads": 60, "num_key_value_heads": 8})",
                        "not a multiple of num_key_value_heads 8"));
  // Another quantization is refused later, with the folder's weights.
  CHECK(kPublished.load(R"({"quantization_config": {"quant_method": "hqq"}})").stored ==
        StoredNumbers{});
}

TEST_CASE("gpt_oss: which adapters PEFT can have") {
  const ModelSpec spec = kPublished.load().spec;
  const std::set<std::string> all = lora_modules_from("all", spec);
  CHECK(all ==
        std::set<std::string>{"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"});
  CHECK_NOTHROW(require_in_peft(spec, {.modules = all}));
  CHECK_NOTHROW(require_in_peft(spec, {.rank_stabilized = true, .modules = all}));
  CHECK_NOTHROW(require_in_peft(spec, {.dropout = 0.1, .modules = {"q_proj"}}));
  // The suggested modules are accepted.
  CHECK_THROWS_WITH_AS(
      require_in_peft(spec, {.dropout = 0.1, .modules = all}),
      "lora_target: adapters of experts are not supported with lora_dropout, since PEFT has none "
      "for them; or set it to 0. Take lora_target: q_proj,k_proj,v_proj,o_proj",
      UserError);
  for (const char* experts : {"gate_up_proj", "down_proj"}) {
    CHECK_THROWS_WITH_AS(require_in_peft(spec, {.dropout = 0.1, .modules = {experts}}),
                         doctest::Contains("not supported with lora_dropout"), UserError);
  }
  CHECK_THROWS_WITH_AS(lora_modules_from("gate_proj", spec),
                       doctest::Contains("the model has no module gate_proj; choose from q_proj"),
                       UserError);
}

}  // namespace
}  // namespace longspan
