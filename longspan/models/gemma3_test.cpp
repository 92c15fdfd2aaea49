#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/testing/published_config.h"

namespace longspan {
namespace {

/// The published config.json of Gemma 3 1B, as transformers 4 wrote it.
const testing::PublishedConfig kPublished(R"({
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": false, "attn_logit_softcapping": null, "final_logit_softcapping": null,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
    "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
    "sliding_window_pattern": 6, "vocab_size": 262144
})");

ModelConfig read(const std::string& changes = "{}") { return kPublished.load(changes); }

const SelfAttentionSpec& mixer_of(const ModelSpec& spec, int64_t layer) {
  return std::get<SelfAttentionSpec>(spec.layer(layer).mixer);
}

TEST_CASE("gemma3: Gemma 3 1B has 999 885 952 parameters") {
  CHECK(num_parameters_of(read().spec, "the model") == 999885952);
}

TEST_CASE("gemma3: five layers with a window and a rotation of their own, then one without") {
  const ModelSpec spec = read().spec;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    CAPTURE(layer);
    const SelfAttentionSpec& mixer = mixer_of(spec, layer);
    const bool global = layer % 6 == 5;
    CHECK(mixer.attention.window == (global ? std::nullopt : std::optional<int64_t>(512)));
    CHECK(mixer.rotary->theta == (global ? 1e6 : 1e4));
    CHECK(mixer.attention.scale == 1.0 / 16);
    CHECK(mixer.qk_norm);
    const LayerNorms& norms = spec.layer(layer).norms;
    CHECK(norms.before_feed_forward == "pre_feedforward_layernorm");
    REQUIRE(norms.behind);
    CHECK(norms.behind->mixer == "post_attention_layernorm");
    CHECK(norms.behind->feed_forward == "post_feedforward_layernorm");
  }
  CHECK(spec.norm_kind == NormKind::kOnePlusWeight);
  CHECK(spec.embedding_scale == std::sqrt(1152.0));
  CHECK(spec.tied_head);
  CHECK(spec.padding_token == 0);
  CHECK(attentions_of(spec).size() == 2);
  CHECK(attentions_of(spec)[0].second == 22);
}

TEST_CASE("gemma3: Gemma 3 1B has 999 885 952 parameters") {
  CHECK(num_parameters_of(read().spec, "the model") == 999885952);
}

TEST_CASE("gemma3: rotations as transformers 4 and 5 write them, kinds of layers as a list") {
  const std::string five = R"({

    "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 30000.0}},
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]
})";
  const ModelSpec spec = read(five).spec;
  CHECK_FALSE(mixer_of(spec, 0).attention.window);
  CHECK(mixer_of(spec, 0).rotary->theta == 2e6);
  CHECK(mixer_of(spec, 0).rotary->scaling.factor == 8.0);
  CHECK(mixer_of(spec, 1).attention.window == 512);
  CHECK(mixer_of(spec, 1).rotary->theta == 3e4);
  CHECK((mixer_of(spec, 1).rotary->scaling == RopeScaling{}));
  // The scaling of transformers 4 applies to the layers without a window.
  const ModelSpec four = read(R"({"rope_scaling": {"rope_type": "linear", "factor": 8.0}})").spec;
  CHECK((mixer_of(four, 0).rotary->scaling == RopeScaling{}));
  CHECK(mixer_of(four, 5).rotary->scaling.factor == 8.0);
  CHECK(mixer_of(four, 5).rotary->theta == 1e6);
}

TEST_CASE("gemma3: what its models do not have is refused by name") {
  const auto refused = [](const std::string& changes, const char* part) {
    CHECK_THROWS_WITH_AS(read(changes), doctest::Contains(part), UserError);
  };
  refused(R"({"attn_logit_softcapping": 50.0})",
          "attn_logit_softcapping is 50, and models of this type have none");
  refused(R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping is 30, and models");
  refused(R"({"hidden_activation": "silu"})", "hidden_activation silu is not supported");
  refused(R"({"use_bidirectional_attention": true})", "use_bidirectional_attention: true");
  refused(R"({"sliding_window": 0})", "sliding_window is 0");
  refused(R"({"sliding_window_pattern": 0})", "sliding_window_pattern is 0");
  refused(R"({"layer_types": ["full_attention"]})", "layer_types must be a list");
  refused(R"({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]})",
          "layer_types has \"chunked_attention\"");
  refused(R"({"query_pre_attn_scalar": 0})", "query_pre_attn_scalar is 0, it must be positive");
}

}  // namespace
}  // namespace longspan
