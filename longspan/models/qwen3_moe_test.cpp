// Qwen3's mixtures of experts: published configs, layers with and without experts, refusals.
#include <doctest/doctest.h>

#include <string>

#include "longspan/base/user_error.h"
#include "longspan/models/parameter_count.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

using testing::billions;
using testing::PublishedConfig;

/// The published config.json of Qwen3-30B-A3B.
const PublishedConfig kPublished(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936
})");

TEST_CASE("qwen3_moe: published models have the parameters that their makers say") {
  // 30.5 billion parameters, 3.3 active; 235 and 22 (the models' cards).
  const ModelConfig small = kPublished.load();
  CHECK(billions(parameter_count(small.spec)) == doctest::Approx(30.5).epsilon(0.002));
  CHECK(billions(parameter_count(small.spec) - idle_parameters_of(small.spec)) ==
        doctest::Approx(3.3).epsilon(0.02));
  const ModelConfig large = kPublished.load(R"({
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
    "num_attention_heads": 64, "num_hidden_layers": 94
})");
  CHECK(billions(parameter_count(large.spec)) == doctest::Approx(235).epsilon(0.002));
  CHECK(billions(parameter_count(large.spec) - idle_parameters_of(large.spec)) ==
        doctest::Approx(22).epsilon(0.02));
  CHECK(small.spec.pattern.size() == 1);
  CHECK_FALSE(small.router_aux_loss_coef);
  CHECK(kPublished.load(R"({"output_router_logits": true})").router_aux_loss_coef == 0.001);
  const ModelConfig windowed =
      kPublished.load(R"({"use_sliding_window": true, "sliding_window": 512})");
  CHECK(attentions_of(windowed.spec)[0].first.window == 512);
}

TEST_CASE("qwen3_moe: which layers have experts") {
  const auto sparse = [](const std::string& changes) {
    return layers_with_experts(kPublished.load(changes).spec);
  };
  using Layers = std::vector<int64_t>;
  CHECK(sparse(R"({"num_hidden_layers": 3})") == Layers{0, 1, 2});
  CHECK(sparse(R"({"num_hidden_layers": 5, "decoder_sparse_step": 2})") == Layers{1, 3});
  CHECK(sparse(R"({"num_hidden_layers": 4, "mlp_only_layers": [0, 2]})") == Layers{1, 3});
  const ModelSpec spec =
      kPublished.load(R"({"num_hidden_layers": 2, "mlp_only_layers": [1]})").spec;
  CHECK(std::get<GatedMlpSpec>(spec.layer(1).feed_forward).intermediate_size == 6144);
  const ParameterTable parameters(parameters_of(spec));
  const ParameterSpec& expert = parameters.of("model.layers.0.mlp.experts.127.down_proj.weight");
  CHECK(expert.shape == std::vector<int64_t>{2048, 768});
  CHECK(expert.lora_target == "down_proj");
  CHECK(expert.module == "mlp");
  const ParameterSpec& router = parameters.of("model.layers.0.mlp.gate.weight");
  CHECK(router.shape == std::vector<int64_t>{128, 2048});
  CHECK(router.use == ParameterUse::kAsHeld);
  CHECK(router.lora_target.empty());
}

TEST_CASE("qwen3_moe: transformers 5 names the experts otherwise") {
  const PublishedConfig without = kPublished.without({"num_experts"});
  CHECK(experts_of(without.load(R"({"num_local_experts": 64})").spec)->num_experts == 64);
}

TEST_CASE("qwen3_moe: refusals") {
  CHECK(kPublished.says(R"({"num_experts_per_tok": 129})",
                        "num_experts_per_tok is 129, it must be at most the 128 experts"));
  CHECK(kPublished.says(R"({"num_experts": 1048576})", "num_experts"));
  CHECK(kPublished.says(R"({"decoder_sparse_step": 0})", "decoder_sparse_step"));
  CHECK(kPublished.says(R"({"mlp_only_layers": ["a"]})", "mlp_only_layers must be a list"));
  CHECK(kPublished.says(R"({"mlp_only_layers": [1], "num_hidden_layers": 2000})", "at most 1024"));
  CHECK(kPublished.says(R"({"hidden_act": "gelu"})", "hidden_act gelu is not supported"));
}

TEST_CASE("LoRA on experts: what PEFT cannot have is refused") {
  const auto refused = [](const ModelSpec& spec, const LoraShape& shape) {
    try {
      require_in_peft(spec, shape);
    } catch (const UserError&) {
      return true;
    }
    return false;
  };
  const ModelSpec spec = kPublished.load().spec;
  const std::set<std::string> all = {"gate_proj", "up_proj", "down_proj", "q_proj"};
  CHECK_FALSE(refused(spec, {.modules = all}));
  CHECK_FALSE(refused(spec, {.dropout = 0.1, .rank_stabilized = true, .modules = {"q_proj"}}));
  CHECK_FALSE(refused(spec, {.rank_stabilized = true, .modules = {"down_proj"}}));
  CHECK(refused(spec, {.rank_stabilized = true, .modules = all}));
  CHECK(refused(spec, {.dropout = 0.1, .modules = all}));
  CHECK(refused(spec, {.modules = {"gate_proj"}}));
  CHECK_THROWS_WITH_AS(
      require_in_peft(spec, {.modules = {"up_proj", "down_proj"}}),
      "lora_target: adapters of experts need both gate_proj and up_proj or neither, since PEFT "
      "loads them as one; or name both. Take lora_target: q_proj,k_proj,v_proj,o_proj",
      UserError);
  const ModelSpec with_dense = kPublished.load(R"({"mlp_only_layers": [1]})").spec;
  CHECK_FALSE(refused(with_dense, {.modules = all}));
  CHECK(passed_over(spec, all).empty());
  CHECK(passed_over(with_dense, all) ==
        std::vector<std::string>{"gate_proj", "up_proj", "down_proj"});
  for (const ParameterSpec& matrix : lora_parameters_of(with_dense, {.modules = {"down_proj"}})) {
    CAPTURE(matrix.name);
    CHECK(matrix.expert.has_value());
  }
}

}  // namespace
}  // namespace longspan
