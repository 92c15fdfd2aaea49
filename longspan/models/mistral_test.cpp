#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

const testing::PublishedConfig kPublished(R"({
    "model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": null
})");

ModelConfig read(const std::string& changes = "{}") { return kPublished.load(changes); }

TEST_CASE("mistral: a decoder without biases, with transformers' defaults") {
  const ModelConfig config = read();
  CHECK(config.max_position_embeddings == 131072);
  CHECK(config.spec.norm_eps == 1e-6);
  CHECK_FALSE(config.spec.tied_head);
  for (const ParameterSpec& parameter : parameters_of(config.spec)) {
    CHECK(parameter.role != ParameterRole::kBias);
  }
  CHECK(attentions_of(read(R"({"head_dim": 32})").spec)[0].first.key_dim == 32);
}

TEST_CASE("mistral: its window, that of transformers where it says none, and null for none") {
  const auto window = [](const ModelConfig& config) {
    return attentions_of(config.spec).at(0).first.window;
  };
  CHECK(window(read(R"({"sliding_window": 512})")) == 512);
  CHECK(window(read()) == std::nullopt);
  const testing::PublishedConfig silent(R"({
    "model_type": "mistral", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 8192
})");
  CHECK(window(silent.load()) == 4096);
  const auto refused = [](const std::string& changes, const char* part) {
    CHECK_THROWS_WITH_AS(read(changes), doctest::Contains(part), UserError);
  };
  refused(R"({"sliding_window": "4096"})", "sliding_window must be a whole number");
  refused(R"({"sliding_window": 0})", "sliding_window is 0, it must be positive");
}

// The published config.json, and the parameter count of its weights.
TEST_CASE("mistral: Mistral-7B-v0.1 has 7 241 732 096 parameters") {
  const ModelConfig config = read(R"({
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 32000
})");
  CHECK(num_parameters_of(config.spec, "the model") == 7241732096);
}

}  // namespace
}  // namespace longspan
