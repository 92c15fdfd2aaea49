#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "longspan/config/user_error.h"
#include "longspan/models/parse_model_config.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

ModelConfig read(const Json& changes) {
  Json json = {{"model_type", "mistral"},  {"architectures", {"MistralForCausalLM"}},
               {"vocab_size", 100},        {"hidden_size", 64},
               {"intermediate_size", 96},  {"num_hidden_layers", 2},
               {"num_attention_heads", 4}, {"num_key_value_heads", 2},
               {"sliding_window", nullptr}};
  json.update(changes);
  return parse_model_config(json.dump(), "config.json");
}

TEST_CASE("mistral: a decoder without biases, with transformers' defaults") {
  const ModelConfig config = read(Json::object());
  CHECK(config.max_position_embeddings == 131072);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK_FALSE(config.tie_word_embeddings);
  for (const ParameterSpec& parameter : parameters_of(spec_of(config))) {
    CHECK(parameter.role != ParameterRole::kBias);
  }
  CHECK(read({{"head_dim", 32}}).head_dim == 32);
}

TEST_CASE("mistral: a window that would apply is refused by name, with the remedy") {
  const auto refused = [](const Json& changes, const char* part) {
    CHECK_THROWS_WITH_AS(read(changes), doctest::Contains(part), UserError);
  };
  refused({{"sliding_window", 4096}, {"max_position_embeddings", 32768}},
          "sliding_window 4096 is smaller than max_position_embeddings 32768");
  refused({{"sliding_window", 4096}, {"max_position_embeddings", 32768}},
          "Set sliding_window to null");
  refused({{"sliding_window", "4096"}}, "sliding_window must be a whole number");
  refused({{"sliding_window", 0}}, "sliding_window 0 is smaller");
  // Of 4096 tokens all are in the window.
  CHECK_NOTHROW(read({{"sliding_window", 4096}, {"max_position_embeddings", 4096}}));
  // Without the key there is transformers' window.
  Json silent = {{"model_type", "mistral"},  {"vocab_size", 100},
                 {"hidden_size", 64},        {"intermediate_size", 96},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}, {"max_position_embeddings", 8192}};
  CHECK_THROWS_WITH_AS(parse_model_config(silent.dump(), "config.json"),
                       doctest::Contains("sliding_window 4096 (the default of this family)"),
                       UserError);
}

}  // namespace
}  // namespace longspan
