#include <doctest/doctest.h>

#include <string>

#include "longspan/config/user_error.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

/// The published config.json of Phi-4.
const testing::PublishedConfig kPublished(R"({
    "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "attention_bias": false,
    "embd_pdrop": 0.0, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17920,
    "max_position_embeddings": 16384, "num_attention_heads": 40, "num_hidden_layers": 40,
    "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
    "pad_token_id": 100349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 250000, "sliding_window": null, "tie_word_embeddings": false,
    "vocab_size": 100352
})");

ModelConfig read(const std::string& changes = "{}") { return kPublished.load(changes); }

TEST_CASE("phi3: Phi-4 has 14 659 507 200 parameters") {
  CHECK(num_parameters_of(read().spec, "the model") == 14659507200);
}

TEST_CASE("phi3: parts of a stored tensor follow each other and make all of it") {
  std::string whole;
  int64_t end = 0, num_rows = 0, num_parts = 0;
  for (const ParameterSpec& parameter : layer_parameters(read().spec, 3)) {
    CHECK((end == num_rows || parameter.stored_as == whole));
    if (!parameter.stored_part) continue;
    num_parts += 1;
    if (begins_stored(parameter)) {
      whole = parameter.stored_as;
      end = 0;
      num_rows = parameter.stored_part->num_rows;
    }
    CHECK(parameter.stored_part->begin == end);
    CHECK(stored_shape(parameter) == std::vector<int64_t>{num_rows, 5120});
    end += parameter.shape[0];
  }
  CHECK(end == num_rows);
  CHECK(num_parts == 5);
  CHECK(whole == "model.layers.3.mlp.gate_up_proj.weight");
}

TEST_CASE("phi3: part of a head is rotated, windows, and what is refused by name") {
  CHECK(read(R"({"partial_rotary_factor": 0.75})").rotary.dim == 96);
  CHECK(attentions_of(read(R"({"sliding_window": 2047})").spec).at(0).first.window == 2047);
  CHECK_FALSE(attentions_of(read().spec).at(0).first.window);
  const auto refused = [](const std::string& changes, const char* part) {
    CHECK_THROWS_WITH_AS(read(changes), doctest::Contains(part), UserError);
  };
  refused(R"({"rope_scaling": {"type": "longrope", "factor": 32.0}})",
          "rope type longrope is not supported");
  refused(R"({"resid_pdrop": 0.1})", "resid_pdrop other than 0 is not supported");
  refused(R"({"sliding_window": -1})", "sliding_window is -1");
  CHECK_THROWS_WITH_AS(lora_modules_from("all", read().spec),
                       doctest::Contains("self_attn.qkv_proj.weight for several linear layers"),
                       UserError);
}

}  // namespace
}  // namespace longspan
