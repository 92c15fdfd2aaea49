#include <doctest/doctest.h>

#include <set>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

/// The published config.json of GLM-4-9B-0414.
const testing::PublishedConfig kPublished(R"({
    "model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "attention_bias": true,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 13696,
    "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "pad_token_id": 151329, "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "vocab_size": 151552
})");

ModelConfig read(const std::string& changes = "{}") { return kPublished.load(changes); }

TEST_CASE("glm4: GLM-4-9B-0414 and GLM-4-32B-0414 have the parameters that transformers counts") {
  CHECK(num_parameters_of(read().spec, "the model") == 9400279040);
  const std::string large = R"({
    "attention_bias": false, "hidden_size": 6144, "intermediate_size": 23040,
    "num_attention_heads": 48, "num_hidden_layers": 61, "num_key_value_heads": 2
})";
  CHECK(num_parameters_of(read(large).spec, "the model") == 32566081536);
}

TEST_CASE("glm4: norms by their names, biases before attention alone, rotation in neighbours") {
  const ModelSpec spec = read().spec;
  const ParameterTable parameters(layer_parameters(spec, 3));
  for (const char* norm : {"input_layernorm", "post_self_attn_layernorm",
                           "post_attention_layernorm", "post_mlp_layernorm"}) {
    CHECK((parameters.of(std::string("model.layers.3.") + norm + ".weight").role ==
           ParameterRole::kNorm));
  }
  const LayerNorms& norms = spec.layer(0).norms;
  CHECK(norms.before_feed_forward == "post_attention_layernorm");
  REQUIRE(norms.behind);
  CHECK(norms.behind->mixer == "post_self_attn_layernorm");
  const auto& mixer = std::get<SelfAttentionSpec>(spec.layer(0).mixer);
  CHECK(mixer.qkv_bias);
  CHECK_FALSE(mixer.output_bias);
  CHECK((mixer.rotary->pairs == RotaryPairs::kNeighbours));
  CHECK(mixer.rotary->dim == 64);
  CHECK(parameters.of("model.layers.3.mlp.up_proj.weight").stored_as ==
        "model.layers.3.mlp.gate_up_proj.weight");
  CHECK(spec.padding_token == 151329);
}

TEST_CASE("glm4: gate and up have one adapter, as in the files") {
  const ModelSpec spec = read().spec;
  CHECK(lora_modules_from("all", spec) ==
        std::set<std::string>{"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"});
  CHECK_THROWS_WITH_AS(lora_modules_from("q_proj,gate_proj", spec),
                       doctest::Contains("no module gate_proj; choose from q_proj, k_proj, v_proj, "
                                         "o_proj, gate_up_proj, down_proj, or all"),
                       UserError);
}

TEST_CASE("glm4: what is missing, and cannot be transformers' default, is refused") {
  CHECK_FALSE(read(R"({"vocab_size": 1000, "pad_token_id": null})").spec.padding_token.has_value());
  const testing::PublishedConfig unpadded = kPublished.without({"pad_token_id"});
  CHECK(unpadded.load(R"({"vocab_size": 160000})").spec.padding_token == 151329);
  CHECK(unpadded.says(R"({"vocab_size": 1000})",
                      "pad_token_id is missing, and that of this family, 151329"));
  const testing::PublishedConfig without = kPublished.without({"num_key_value_heads"});
  CHECK(attentions_of(without.load().spec)[0].first.num_kv_heads == 2);
  CHECK(without.says(R"({"num_attention_heads": 31})", "num_key_value_heads is missing"));
}

}  // namespace
}  // namespace longspan
