#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/kernels/rope.h"
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

/// Returns "[begin, begin + step, ...]".
std::string numbers(int64_t count, int64_t begin, int64_t step) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(begin + i * step);
  return fmt::format("[{}]", fmt::join(all, ", "));
}

/// The published config.json of Phi-4-mini with other factors: 1 for short rows, 1 to 48 for long
/// ones.
const testing::PublishedConfig kMini(fmt::format(
    R"({{
    "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999,
    "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
    "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false,
    "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 24,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings": 4096,
    "pad_token_id": 199999, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05, "rope_scaling": {{"long_factor": {}, "short_factor": {},
    "type": "longrope"}}, "rope_theta": 10000.0, "sliding_window": 262144,
    "tie_word_embeddings": true, "vocab_size": 200064
}})",
    numbers(48, 1, 1), numbers(48, 1, 0)));

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
  refused(R"({"rope_scaling": {"type": "longrope", "factor": 32.0}})", "short_factor is missing");
  refused(R"({"rope_scaling": {"type": "linear", "factor": 32.0}})",
          "rope_type linear is not supported; default, longrope, su, yarn are. Take a model");
  refused(R"({"resid_pdrop": 0.1})",
          "resid_pdrop is 0.1: hidden states have no dropout in training. Set it to 0");
  refused(R"({"sliding_window": -1})", "sliding_window is -1");
}

TEST_CASE("phi3: Phi-4-mini has 3 836 021 760 parameters and rotates long rows otherwise") {
  const ModelConfig config = kMini.load("{}");
  CHECK(num_parameters_of(config.spec, "the model") == 3836021760);
  const std::vector<RotaryKind> kinds = rotary_kinds_of(config.spec);
  REQUIRE(kinds.size() == 1);
  CHECK(kinds[0].dim == 96);
  const RopeScaling& scaling = kinds[0].rotary.scaling;
  CHECK((scaling.type == RopeScaling::Type::kLongrope));
  CHECK(scaling.factor == 32.0);
  CHECK_FALSE(scaling.is_long(4096));
  CHECK(scaling.is_long(4097));
  const RotaryFrequencies frequencies = rotary_frequencies(kinds[0]);
  CHECK(frequencies.attention_factor == doctest::Approx(std::sqrt(1 + 5.0 / 12)));
  const RotaryFrequencies plain = rotary_frequencies({RotarySpec{}, 96});
  const RotaryFrequencies in_short = frequencies.of_row(4096), in_long = frequencies.of_row(4097);
  CHECK(at::equal(in_short.inverse_F, plain.inverse_F));
  CHECK(at::allclose(in_long.inverse_F * at::arange(1, 49), plain.inverse_F));
  CHECK(in_long.attention_factor == frequencies.attention_factor);
  const auto says = [](const std::string& changes, const char* part) {
    CHECK(kMini.says(changes, part));
  };
  says(R"({"partial_rotary_factor": 0.5})",
       "short_factor of longrope has 48 numbers; wanted are 32");
  says(fmt::format(R"({{"rope_scaling": {{"type": "su", "long_factor": {}, "short_factor": {}}}}})",
                   numbers(48, 0, 1), numbers(48, 1, 0)),
       "long_factor must be positive numbers");
  // As in transformers: original_max_position_embeddings inside the scaling is not read.
  const ModelConfig other = kMini.without({"original_max_position_embeddings"})
                                .load(fmt::format(R"({{"rope_scaling": {{"type": "longrope",
      "original_max_position_embeddings": 8, "attention_factor": 1.5, "factor": 2.0,
      "long_factor": {0}, "short_factor": {0}}}}})",
                                                  numbers(48, 2, 3)));
  CHECK(other.rotary.scaling.original_max_position_embeddings == 4096);
  CHECK(other.rotary.scaling.factor == 2.0);
  CHECK(rotary_frequencies({other.rotary, 96}).attention_factor == 1.5);
}

TEST_CASE("phi3: adapters are on the linear layers of the files, as PEFT names them") {
  const ModelSpec model = read().spec;
  const std::set<std::string> all = lora_modules_from("all", model);
  CHECK(all == std::set<std::string>{"qkv_proj", "o_proj", "gate_up_proj", "down_proj"});
  CHECK_THROWS_WITH_AS(
      lora_modules_from("q_proj", model),
      doctest::Contains("no module q_proj; choose from qkv_proj, o_proj, gate_up_proj, down_proj"),
      UserError);
  LoraShape shape;
  shape.r = 4;
  shape.modules = all;
  const std::vector<ParameterSpec> matrices = lora_parameters_of(model, shape);
  REQUIRE(matrices.size() == 40 * 4 * 2);
  const ParameterSpec &a = matrices[0], &b = matrices[1], &up = matrices[5];
  CHECK(a.name == "model.layers.0.self_attn.qkv_proj.lora_A.weight");
  CHECK(b.name == "model.layers.0.self_attn.qkv_proj.lora_B.weight");
  CHECK(up.name == "model.layers.0.mlp.gate_up_proj.lora_B.weight");
  CHECK(a.shape == std::vector<int64_t>{4, 5120});
  CHECK(b.shape == std::vector<int64_t>{5120 + 2 * 1280, 4});
  CHECK(up.shape == std::vector<int64_t>{2 * 17920, 4});
  std::vector<int64_t> begins;
  for (const ParameterSpec& parameter : layer_parameters(model, 0)) {
    if (!parameter.lora_target.empty()) begins.push_back(lora_b_begin(parameter));
  }
  CHECK(begins == std::vector<int64_t>{0, 5120, 6400, 0, 0, 17920, 0});
}

}  // namespace
}  // namespace longspan
