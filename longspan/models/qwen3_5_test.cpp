#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <variant>

#include "longspan/base/user_error.h"
#include "longspan/models/parameter_count.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

const testing::PublishedConfig kPublished(R"({
    "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4
})");

ModelConfig read(const std::string& changes = "{}") { return kPublished.load(changes); }

TEST_CASE("qwen3.5: layers and transformers' defaults") {
  const ModelConfig config = read();
  CHECK(config.rotary.dim == 64);
  const ModelSpec& spec = config.spec;
  CHECK(spec.norm_kind == NormKind::kOnePlusWeight);
  CHECK(goes_over_rows(spec));
  for (int64_t i = 0; i < 8; ++i) {
    CHECK(std::holds_alternative<GatedDeltaNetSpec>(spec.layer(i).mixer) == (i % 4 != 3));
  }
  const RecurrenceSpec net = *recurrence_of(spec);
  CHECK(net.num_key_heads == 16);
  CHECK(net.num_value_heads == 32);
  CHECK(net.key_dim == 128);
  CHECK(net.value_dim == 128);
  CHECK(net.conv_width == 4);
  const auto& softmax = std::get<SelfAttentionSpec>(spec.layer(3).mixer);
  CHECK(softmax.output_gate);
  CHECK(softmax.qk_norm);
  CHECK(softmax.attention.key_dim == 256);
  CHECK(softmax.attention.num_kv_heads == 4);
  CHECK(attentions_of(spec).front().second == 2);
}

TEST_CASE("qwen3.5: published sizes have the parameters that their names say") {
  // 9B: the defaults of transformers for this family. Names round to whole billions.
  const auto billions = [](const std::string& changes) {
    const testing::PublishedConfig sizes = kPublished.with(R"({
    "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 16,
    "num_hidden_layers": 32, "vocab_size": 248320
})");
    return static_cast<double>(parameter_count(sizes.load(changes).spec)) * 1e-9;
  };
  CHECK(std::round(billions("{}")) == 9);
  CHECK(std::round(billions(R"({
    "head_dim": 256, "hidden_size": 5120, "intermediate_size": 17408,
    "linear_num_value_heads": 48, "num_attention_heads": 24, "num_hidden_layers": 64
})")) == 27);
}

TEST_CASE("qwen3.5: layers by their types, as a pattern that repeats") {
  const auto recurrent = [](const ModelConfig& config) {
    std::vector<bool> layers;
    for (const LayerSpec& layer : config.spec.pattern) {
      layers.push_back(std::holds_alternative<GatedDeltaNetSpec>(layer.mixer));
    }
    return layers;
  };
  const auto pattern = [&](const std::vector<std::string>& types) {
    return recurrent(read(fmt::format(R"({{"layer_types": {}, "num_hidden_layers": {}}})",
                                      testing::json_list(types), types.size())));
  };
  const std::string linear = "linear_attention", full = "full_attention";
  CHECK(pattern({linear, full, linear, full}) == std::vector{true, false});
  CHECK(pattern({linear, full, linear}) == std::vector{true, false});
  CHECK(pattern({full, full}) == std::vector{false});
  CHECK(pattern({full, linear, linear, full}) == std::vector{false, true, true});
  CHECK(recurrent(read(R"({"full_attention_interval": 2})")) == std::vector{true, false});
}

TEST_CASE("qwen3.5: what is not there is refused by name") {
  const auto refused = [](const std::string& changes, const char* part) {
    CHECK_THROWS_WITH_AS(read(changes), doctest::Contains(part), UserError);
  };
  refused(R"({"layer_types": ["linear_attention"]})",
          "layer_types must be a list of one kind for each of 8");
  refused(R"({"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2})",
          "layer_types has \"sliding_attention\"");
  refused(R"({"layer_types": ["linear_attention"], "num_hidden_layers": 1})",
          "layer_types has no full_attention");
  refused(R"({"linear_num_value_heads": 24})", "linear_num_value_heads 24 is not a multiple");
  refused(R"({"linear_conv_kernel_dim": 0})", "linear_conv_kernel_dim is 0");
  refused(R"({"attn_output_gate": false})", "attn_output_gate: false");
  refused(R"({"full_attention_interval": 0})", "full_attention_interval is 0");
  refused(R"({"rope_parameters": {"partial_rotary_factor": 0.013}})", "rotates 3 of a head's 256");
  refused(R"({"num_attention_heads": 6, "head_dim": 16})",
          "num_attention_heads 6 is not a multiple of num_key_value_heads 4");
}

}  // namespace
}  // namespace longspan
