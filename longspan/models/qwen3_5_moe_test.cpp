// Qwen3.5's mixtures of experts: published sizes, layers, refusals.
#include <doctest/doctest.h>

#include <map>
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

/// text_config of Qwen3.5-35B-A3B: the defaults of transformers for this family.
const testing::PublishedConfig kSmall(R"({
    "architectures": ["Qwen3_5MoeForCausalLM"], "hidden_size": 2048,
    "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512, "num_attention_heads": 16,
    "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "shared_expert_intermediate_size": 512, "vocab_size": 248320
})");

ModelConfig load(const std::string& changes = "{}") { return kSmall.load(changes); }

TEST_CASE("qwen3_5_moe: published models have the parameters that their names say") {
  const auto check = [](const ModelConfig& config, double all, double active) {
    const int64_t count = parameter_count(config.spec);
    CHECK(billions(count) == doctest::Approx(all).epsilon(0.011));
    // The names round the active parameters to whole billions, with or without the embedding.
    const double used = billions(count - idle_parameters_of(config.spec)),
                 embedding = billions(config.spec.vocab_size * config.spec.hidden_size);
    CHECK(used > active - 0.5);
    CHECK(used - embedding < active + 0.5);
  };
  check(load(), 35, 3);
  check(load(R"({
    "hidden_size": 4096, "linear_num_value_heads": 64, "moe_intermediate_size": 1024,
    "num_attention_heads": 32, "num_experts": 512, "num_experts_per_tok": 10,
    "num_hidden_layers": 60, "shared_expert_intermediate_size": 1024
})"),
        397, 17);
}

TEST_CASE("qwen3_5_moe: layers") {
  const ModelConfig config = load();
  const ModelSpec& spec = config.spec;
  CHECK(spec.pattern.size() == 4);
  CHECK(layers_with_experts(spec).size() == 40);
  CHECK(attentions_of(spec)[0].first.num_kv_heads == 2);
  CHECK((std::get<GatedDeltaNetSpec>(spec.layer(0).mixer).projections ==
         GatedDeltaNetSpec::Projections::kApart));
  const auto& experts = std::get<MixtureOfExpertsSpec>(spec.layer(3).feed_forward);
  CHECK(experts.router.normalises);
  CHECK(experts.shared.is_gated);
}

TEST_CASE("qwen3_5_moe: experts that the files stack are the parameters, in the tensors' order") {
  const ModelSpec spec = load(R"({"num_experts": 3, "num_experts_per_tok": 2})").spec;
  const ParameterTable parameters(layer_parameters(spec, 5));
  const std::string experts = "model.layers.5.mlp.experts.";
  const StackedPlace up = *parameters.of(experts + "1.up_proj.weight").stored_in_stack,
                     down = *parameters.of(experts + "2.down_proj.weight").stored_in_stack;
  CHECK(up.tensor == experts + "gate_up_proj");
  CHECK(up.shape == std::vector<int64_t>{3, 1024, 2048});
  CHECK(up.begin == (1024 + 512) * 2048);
  CHECK(down.tensor == experts + "down_proj");
  CHECK(down.begin == 2 * 2048 * 512);
  // The parts of a tensor cover it without a gap.
  std::map<std::string, std::map<int64_t, int64_t>> ends;  // begin -> end
  std::map<std::string, int64_t> sizes;
  for (const ParameterSpec& parameter : layer_parameters(spec, 5)) {
    const auto& stack = parameter.stored_in_stack;
    if (!stack) continue;
    ends[stack->tensor][stack->begin] = stack->begin + parameter.num_elements();
    sizes[stack->tensor] = stack->shape[0] * stack->shape[1] * stack->shape[2];
  }
  CHECK(ends.size() == 2);
  for (const auto& [tensor, parts] : ends) {
    int64_t next = 0;
    for (const auto& [begin, end] : parts) {
      CHECK(begin == next);
      next = end;
    }
    CHECK(next == sizes[tensor]);
  }
}

TEST_CASE("qwen3_5_moe: refusals") {
  const auto refused = [](const std::string& changes, const char* part) {
    CHECK_THROWS_WITH_AS(load(changes), doctest::Contains(part), UserError);
  };
  refused(R"({"norm_topk_prob": false})", "norm_topk_prob: false");
  refused(R"({"mlp_only_layers": [1]})", "asks for layers without experts");
  refused(R"({"decoder_sparse_step": 2})", "asks for layers without experts");
  refused(R"({"num_experts": null})", "num_experts is missing");
}

TEST_CASE("qwen3_5_moe: adapters of MLPs are the shared expert's alone") {
  const ModelSpec spec = load().spec;
  const LoraShape shape{.dropout = 0.1, .modules = {"gate_proj", "down_proj"}};
  CHECK_NOTHROW(require_in_peft(spec, shape));
  CHECK(passed_over(spec, shape.modules) == std::vector<std::string>{"gate_proj", "down_proj"});
  const std::vector<ParameterSpec> matrices = lora_parameters_of(spec, shape);
  CHECK(std::ssize(matrices) == 4 * spec.num_layers);
  for (const ParameterSpec& matrix : matrices) CHECK_FALSE(matrix.expert.has_value());
}

}  // namespace
}  // namespace longspan
