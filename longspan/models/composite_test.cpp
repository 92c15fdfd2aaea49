// Models of text and images: their config, and the tensor names of their files.
#include "longspan/models/composite.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/models/own_head.h"
#include "longspan/models/parse_model_config.h"
#include "longspan/models/rope_scaling.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

const Json kText = {{"model_type", "qwen3_5_text"},
                    {"vocab_size", 100},
                    {"hidden_size", 64},
                    {"intermediate_size", 96},
                    {"num_hidden_layers", 4},
                    {"num_attention_heads", 4},
                    {"dtype", "bfloat16"},
                    {"max_position_embeddings", 64},
                    {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};

Json whole(const Json& changes = Json::object(), const Json& text = Json::object()) {
  Json json = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
               {"model_type", "qwen3_5"},
               {"text_config", kText},
               {"vision_config", {{"depth", 2}}}};
  json["text_config"].update(text);
  json.update(changes);
  return json;
}

ModelConfig read(const Json& json) { return parse_model_config(json.dump(), "config.json"); }

TEST_CASE("composite: the language model is that of its text_config") {
  const ModelConfig both = read(whole()), text = read(kText);
  CHECK(is_composite(both));
  CHECK_FALSE(is_composite(text));
  CHECK(both.architecture == "Qwen3_5ForConditionalGeneration");
  CHECK(both.spec == text.spec);
  CHECK(dtype_in(whole()) == "bfloat16");
  CHECK(dtype_in(whole({{"dtype", "float32"}})) == "float32");
  const ModelConfig tied = read(whole({{"tie_word_embeddings", true}}));
  CHECK(tied.spec.tied_head);
  CHECK_FALSE(with_own_head(tied).spec.tied_head);
  const ModelConfig experts = read(whole(
      {{"model_type", "qwen3_5_moe"}, {"architectures", {"Qwen3_5MoeForConditionalGeneration"}}},
      {{"model_type", "qwen3_5_moe_text"},
       {"num_key_value_heads", 2},
       {"num_experts", 4},
       {"num_experts_per_tok", 2},
       {"moe_intermediate_size", 8},
       {"shared_expert_intermediate_size", 8}}));
  CHECK(is_composite(experts));
  CHECK(experts_of(experts.spec)->num_experts == 4);
}

TEST_CASE("composite: names of the files") {
  const ModelConfig both = read(whole()), text = read(kText);
  const Json other_json = {{"model_type", "llama"},    {"vocab_size", 100},
                           {"hidden_size", 64},        {"intermediate_size", 96},
                           {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                           {"num_key_value_heads", 2}, {"max_position_embeddings", 128}};
  const ModelConfig other = read(other_json);
  const std::string own = "model.layers.0.mlp.up_proj.weight",
                    long_name = "model.language_model.layers.0.mlp.up_proj.weight";
  CHECK(name_in_files(both, own) == long_name);
  CHECK(name_in_files(both, "lm_head.weight") == "lm_head.weight");
  CHECK(name_in_files(text, own) == own);
  CHECK(name_in_language_model(both, long_name) == own);
  CHECK(name_in_language_model(text, long_name) == own);
  CHECK(name_in_language_model(text, own) == own);
  CHECK(name_in_language_model(other, long_name) == long_name);
  CHECK(is_copied_tensor(both, "model.visual.pos_embed.weight"));
  CHECK_FALSE(is_copied_tensor(both, long_name));
  CHECK_FALSE(is_copied_tensor(text, "model.visual.pos_embed.weight"));
}

TEST_CASE("composite: those made as LLaVA is have names of their own, for the head too") {
  const Json gemma = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                      {"model_type", "gemma3"},
                      {"text_config",
                       {{"model_type", "gemma3_text"},
                        {"hidden_size", 2560},
                        {"intermediate_size", 10240},
                        {"num_hidden_layers", 34},
                        {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                        {"sliding_window", 1024}}},
                      {"vision_config", {{"hidden_size", 1152}}}};
  const ModelConfig both = read(gemma);
  CHECK(is_composite(both));
  CHECK(both.spec.tied_head);
  CHECK(both.spec.vocab_size == 262208);
  CHECK(attentions_of(both.spec)[0].first.num_heads == 8);
  CHECK(attentions_of(both.spec)[0].first.num_kv_heads == 4);
  // transformers' count for the language model of Gemma 3 4B.
  CHECK(num_parameters_of(both.spec, "the model") == 3880263168);
  const std::string own = "model.layers.0.mlp.up_proj.weight",
                    stored = "language_model.model.layers.0.mlp.up_proj.weight";
  CHECK(name_in_files(both, own) == stored);
  CHECK(name_in_language_model(both, stored) == own);
  CHECK(name_in_files(both, "lm_head.weight") == "language_model.lm_head.weight");
  CHECK(name_in_language_model(both, "language_model.lm_head.weight") == "lm_head.weight");
  CHECK(is_copied_tensor(both, "vision_tower.post_layernorm.bias"));
  CHECK(is_copied_tensor(both, "multi_modal_projector.mm_soft_emb_norm.weight"));
  CHECK_FALSE(is_copied_tensor(both, stored));
  CHECK(describe_copied_tensors(both) == "vision_tower.*, multi_modal_projector.*");
}

TEST_CASE("composite: positions are stretched in text_config") {
  const ModelConfig half =
      read(whole(Json::object(),
                 {{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}}}));
  CHECK(half.rotary.dim == 128);
  CHECK(stretched(half, "yarn", 200, "config.json").rotary.dim == 128);
  const ModelConfig longer = stretched(read(whole()), "yarn", 200, "config.json");
  CHECK(longer.max_position_embeddings == 256);
  CHECK((longer.rotary.scaling.type == RopeScaling::Type::kYarn));
  const Json json = Json::parse(longer.json);
  CHECK(json["text_config"]["max_position_embeddings"] == 256);
  CHECK_FALSE(json.contains("max_position_embeddings"));
}

TEST_CASE("composite: what does not belong together is refused") {
  const auto refused = [](const Json& json, const char* part) {
    CHECK_THROWS_WITH_AS(read(json), doctest::Contains(part), UserError);
  };
  refused(whole({{"text_config", nullptr}}), "text_config is missing");
  refused(whole(Json::object(), {{"model_type", "llama"}}),
          "model_type llama is not supported beside qwen3_5");
  refused(whole({{"tie_word_embeddings", true}}, {{"tie_word_embeddings", false}}),
          "tie_word_embeddings is false, and true outside of text_config");
  refused(whole(Json::object(), {{"hidden_size", nullptr}}),
          "text_config): hidden_size is missing");
  refused(whole({{"architectures", {"Qwen3_5ForCausalLM"}}}), "Qwen3_5ForConditionalGeneration is");
  // A language model of another family: the message names it and the remedy.
  refused(whole({{"model_type", "llava"}}), "save that part by itself: docs/configuration.md");
}

}  // namespace
}  // namespace longspan
