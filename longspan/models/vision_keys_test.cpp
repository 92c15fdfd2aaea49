// Keys of vision_config: defaults, published values, refusals; and the model with its tower.
#include "longspan/models/vision_keys.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/models/composite.h"
#include "longspan/models/parse_model_config.h"

namespace longspan {
namespace {

using Json = nlohmann::json;
using Reader = VisionSpec (*)(const VisionKeys&);

VisionSpec read(Reader reader, const Json& json) {
  const Json whole = {{"mm_tokens_per_image", 16}};
  return reader({JsonObject(json, "vision_config"), JsonObject(whole, "config.json"), 64});
}

bool says(Reader reader, const Json& json, const char* what) {
  try {
    read(reader, json);
  } catch (const UserError& error) {
    return std::string(error.what()).find(what) != std::string::npos;
  }
  return false;
}

TEST_CASE("vision keys: published towers") {
  const VisionSpec first = read(read_qwen2_vl_vision, {{"depth", 32},
                                                       {"embed_dim", 1280},
                                                       {"mlp_ratio", 4},
                                                       {"num_heads", 16},
                                                       {"in_chans", 3},
                                                       {"hidden_size", 1536},
                                                       {"patch_size", 14},
                                                       {"spatial_merge_size", 2},
                                                       {"spatial_patch_size", 14},
                                                       {"temporal_patch_size", 2}});
  CHECK(first.mlp.intermediate_size == 5120);
  CHECK(first.output_size == 1536);
  CHECK(first.patch_dim() == 3 * 2 * 14 * 14);
  CHECK_FALSE(first.windows);
  const VisionSpec second =
      read(read_qwen2_5_vl_vision, {{"depth", 32},
                                    {"hidden_act", "silu"},
                                    {"hidden_size", 1280},
                                    {"intermediate_size", 3420},
                                    {"num_heads", 16},
                                    {"in_chans", 3},
                                    {"out_hidden_size", 2048},
                                    {"patch_size", 14},
                                    {"spatial_merge_size", 2},
                                    {"spatial_patch_size", 14},
                                    {"window_size", 112},
                                    {"fullatt_block_indexes", {7, 15, 23, 31}},
                                    {"tokens_per_second", 2},
                                    {"temporal_patch_size", 2}});
  REQUIRE(second.windows);
  CHECK(second.windows->side == 4);
  CHECK(second.is_full(15));
  CHECK_FALSE(second.is_full(16));
  CHECK((second.norm == VisionSpec::Norm::kRmsNorm));
  const VisionSpec third = read(read_qwen3_vl_vision, Json::object());
  CHECK(third.depth == 27);
  CHECK(third.position_side == 48);
  CHECK(third.deepstack == std::vector<int64_t>{8, 16, 24});
  CHECK(third.feature_dim() == 4 * 3584);
  CHECK(read(read_qwen3_5_vision, Json::object()).deepstack.empty());
}

TEST_CASE("vision keys: what is not known or cannot be is refused") {
  CHECK(says(read_qwen2_vl_vision, {{"use_head", true}},
             "use_head is not known in this family's vision_config"));
  CHECK(says(read_qwen2_vl_vision, {{"window_size", 112}}, "window_size is not known"));
  CHECK(says(read_qwen2_vl_vision, {{"hidden_act", "gelu"}},
             "hidden_act gelu is not supported in the vision tower; quick_gelu is"));
  CHECK(says(read_qwen2_vl_vision, {{"in_chans", 1}}, "in_chans is 1, and in_channels 3"));
  CHECK(says(read_qwen2_vl_vision, {{"embed_dim", 100}}, "need a multiple of 4"));
  CHECK(says(read_qwen2_vl_vision, {{"rope_parameters", {{"rope_type", "yarn"}}}},
             "rope_type yarn is not supported in the vision tower; axial is"));
  CHECK(says(read_qwen2_vl_vision, {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
             "partial_rotary_factor is not known"));
  CHECK(read(read_qwen2_vl_vision,
             {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e5}}}})
            .rotary_theta.value() == 1e5);
  CHECK(says(read_qwen2_5_vl_vision, {{"window_size", 20}}, "window_size is 20, less than"));
  CHECK(says(read_qwen2_5_vl_vision, {{"fullatt_block_indexes", {7, 40}}},
             "fullatt_block_indexes [7, 40] must be ascending blocks from 0 to 31"));
  CHECK(says(read_qwen3_vl_vision, {{"num_position_embeddings", 2300}}, "it must be a square"));
  CHECK(says(read_qwen3_vl_vision, {{"deepstack_visual_indexes", {16, 8}}}, "must be ascending"));
  CHECK(says(read_qwen3_5_vision, {{"deepstack_visual_indexes", {8}}},
             "deepstack_visual_indexes must be empty in this family"));
  CHECK(says(read_qwen3_vl_vision, {{"depth", 5000}}, "depth is 5000, it must be at most 4096"));
}

/// Gemma 3's vision_config, as published.
Json siglip() {
  return {{"model_type", "siglip_vision_model"},
          {"hidden_size", 1152},
          {"image_size", 896},
          {"intermediate_size", 4304},
          {"num_attention_heads", 16},
          {"num_hidden_layers", 27},
          {"patch_size", 14},
          {"vision_use_head", false}};
}

TEST_CASE("vision keys: Gemma 3's tower") {
  const VisionSpec vision = read(read_gemma3_vision, siglip());
  CHECK(vision.position_side == 64);
  CHECK(vision.merge_size == 16);  // 16 tokens in read()
  CHECK(vision.patch_dim() == 3 * 14 * 14);
  CHECK(vision.output_size == 64);
  CHECK(vision.two_way_pictures);
  CHECK_FALSE(vision.rotary_theta);
  const auto refused = [](const char* key, const Json& value, const char* what) {
    Json json = siglip();
    json[key] = value;
    return says(read_gemma3_vision, json, what);
  };
  CHECK(refused("vision_use_head", true, "vision_use_head must be false"));
  CHECK(refused("vision_use_head", nullptr, "vision_use_head must be false"));
  CHECK(refused("hidden_act", "gelu", "hidden_act gelu is not supported"));
  CHECK(refused("image_size", 900, "must be squares of whole patches"));
  CHECK(refused("image_size", 868, "must be squares of whole patches"));  // 62 patches a side
  CHECK(refused("num_attention_heads", 7, "is not divisible by num_attention_heads 7"));
  CHECK(refused("attention_dropout", 0.1, "attention_dropout is 0.1"));
  CHECK(refused("layer_norm_eps", 0, "layer_norm_eps is 0, it must be positive"));
  CHECK(refused("use_rope", true, "use_rope is not known"));
}

TEST_CASE("vision keys: names of Gemma 3's tower, in files and adapters") {
  const Json json = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                     {"model_type", "gemma3"},
                     {"image_token_index", 90},
                     {"boi_token_index", 91},
                     {"eoi_token_index", 92},
                     {"text_config",
                      {{"model_type", "gemma3_text"},
                       {"vocab_size", 100},
                       {"hidden_size", 64},
                       {"intermediate_size", 96},
                       {"num_hidden_layers", 2}}},
                     {"vision_config", siglip()}};
  const ModelConfig texts = parse_model_config(json.dump(), "config.json"),
                    both = with_pictures(texts);
  const std::string own = "visual.vision_tower.encoder.layers.3.mlp.fc1.weight",
                    published = "vision_tower.vision_model.encoder.layers.3.mlp.fc1.weight";
  CHECK(name_in_files(both, own) == published);
  for (const char* stored : {published.c_str(), "vision_tower.encoder.layers.3.mlp.fc1.weight",
                             "model.vision_tower.encoder.layers.3.mlp.fc1.weight",
                             "model.vision_tower.vision_model.encoder.layers.3.mlp.fc1.weight"}) {
    CAPTURE(stored);
    CHECK(name_in_language_model(both, stored) == own);
  }
  CHECK(name_in_adapter(both, own) == "model.vision_tower.encoder.layers.3.mlp.fc1.weight");
  const std::string matrix = "visual.multi_modal_projector.mm_input_projection_weight";
  CHECK(name_in_files(both, matrix) == "multi_modal_projector.mm_input_projection_weight");
  CHECK(name_in_language_model(both, "multi_modal_projector.mm_input_projection_weight") == matrix);
  CHECK(is_copied_tensor(texts, published));
  CHECK_FALSE(is_copied_tensor(both, published));
  const std::string layer = "model.layers.0.mlp.up_proj.weight";
  CHECK(name_in_files(both, layer) == "language_model.model.layers.0.mlp.up_proj.weight");
  CHECK(name_in_adapter(both, layer) == "model.language_model.layers.0.mlp.up_proj.weight");
  CHECK(name_in_language_model(both, "model.language_model.layers.0.mlp.up_proj.weight") == layer);
  const PictureTokens tokens = picture_tokens(both);
  CHECK(tokens.image == 90);
  CHECK(tokens.video == -1);
  CHECK(tokens.end == 92);
}

/// A flat config.json, as Qwen2-VL's are published.
Json published() {
  return {{"architectures", {"Qwen2VLForConditionalGeneration"}},
          {"model_type", "qwen2_vl"},
          {"vocab_size", 400},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 512},
          {"rope_theta", 1e6},
          {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}}},
          {"image_token_id", 300},
          {"video_token_id", 301},
          {"vision_start_token_id", 302},
          {"vision_end_token_id", 303},
          {"vision_config",
           {{"depth", 2},
            {"embed_dim", 32},
            {"hidden_size", 64},
            {"num_heads", 2},
            {"patch_size", 4}}}};
}

ModelConfig load(const Json& json) { return parse_model_config(json.dump(), "config.json"); }

TEST_CASE("vision keys: a model with pictures has the tower's parameters, and copies none") {
  const ModelConfig texts = load(published());
  const ModelConfig both = with_pictures(texts);
  CHECK_FALSE(texts.spec.vision);
  REQUIRE(both.spec.vision);
  CHECK(texts.spec.pattern == both.spec.pattern);
  const std::string patches = "visual.patch_embed.proj.weight";
  CHECK(is_copied_tensor(texts, patches));
  CHECK(is_copied_tensor(texts, "model.visual.pos_embed.weight"));
  CHECK_FALSE(is_copied_tensor(both, patches));
  CHECK(copies_vision(texts));
  CHECK_FALSE(copies_vision(both));
  // Files have either name; saving has the published one.
  CHECK(name_in_language_model(both, "model.visual.patch_embed.proj.weight") == patches);
  CHECK(name_in_language_model(both, patches) == patches);
  CHECK(name_in_files(both, patches) == patches);
  const std::string layer = "model.layers.0.mlp.up_proj.weight";
  CHECK(name_in_language_model(both, "model.language_model.layers.0.mlp.up_proj.weight") == layer);
  CHECK(name_in_files(both, layer) == layer);
  // Adapters have the names of transformers' modules, where it has no class for texts alone.
  for (const ModelConfig& config : {texts, both}) {
    CHECK(name_in_adapter(config, "model.layers.0.mlp.up_proj.lora_A.weight") ==
          "model.language_model.layers.0.mlp.up_proj.lora_A.weight");
  }
  CHECK(name_in_adapter(both, "visual.blocks.0.attn.qkv.lora_A.weight") ==
        "model.visual.blocks.0.attn.qkv.lora_A.weight");
  const PictureTokens tokens = picture_tokens(both);
  CHECK(tokens.image == 300);
  CHECK(tokens.end == 303);
  const std::optional<RotarySpec> rotary =
      std::get<SelfAttentionSpec>(both.spec.pattern[0].mixer).rotary;
  REQUIRE(rotary);
  CHECK(rotary->axes == RotaryAxes{.sections = {2, 3, 3}, .interleaved = false});
}

TEST_CASE("vision keys: models that take no pictures, or do not fit together") {
  const auto refused = [](const Json& changes, const char* what) {
    Json json = published();
    json.update(changes);
    CHECK_THROWS_WITH_AS(picture_tokens(with_pictures(load(json))), doctest::Contains(what),
                         UserError);
  };
  refused({{"image_token_id", 400}}, "image_token_id 400 is outside of the vocabulary of 400");
  refused({{"vision_config", {{"hidden_size", 32}}}},
          "the tower's features have 32 numbers, and the language model 64");
  refused({{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {2, 3, 4}}}}},
          "that add up to 8, the rotated pairs of a head");
  refused({{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {2, 3}}}}},
          "mrope_section has 2 numbers; wanted are 3");
  refused({{"rope_scaling",
            {{"type", "mrope"}, {"mrope_interleaved", true}, {"mrope_section", {2, 3, 3}}}}},
          "mrope_interleaved must be false in this family");
  // transformers has no class for this language model alone.
  refused({{"model_type", "qwen2_vl_text"}, {"architectures", nullptr}},
          "model_type qwen2_vl_text is not supported");
  const Json qwen2 = {{"model_type", "qwen2"},   {"vocab_size", 100},
                      {"hidden_size", 64},       {"intermediate_size", 96},
                      {"num_hidden_layers", 2},  {"num_attention_heads", 4},
                      {"num_key_value_heads", 2}};
  CHECK_THROWS_WITH_AS(with_pictures(load(qwen2)),
                       doctest::Contains("model_type qwen2 takes none here; qwen2_vl, "),
                       UserError);
}

TEST_CASE("vision keys: where config.json says that the head is tied") {
  const auto nested = [](bool beside, bool in) {
    Json json = published();
    Json text = json;
    for (const char* key : {"architectures", "vision_config"}) text.erase(key);
    text["model_type"] = "qwen2_vl_text";
    text["tie_word_embeddings"] = in;
    json["tie_word_embeddings"] = beside;
    json["text_config"] = text;
    return load(json).spec.tied_head;
  };
  CHECK(nested(true, false));
  CHECK(nested(false, true));
  CHECK_FALSE(nested(false, false));
}

}  // namespace
}  // namespace longspan
