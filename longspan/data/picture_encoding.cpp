#include "longspan/data/picture_encoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

namespace {

constexpr PictureTokenNames kQwenTokens{.image = {"<|image_pad|>", "image_token_id"},
                                        .video = {"<|video_pad|>", "video_token_id"},
                                        .begin = {"<|vision_start|>", "vision_start_token_id"},
                                        .end = {"<|vision_end|>", "vision_end_token_id"}},
    kGemma3Tokens{.image = {"<image_soft_token>", "image_token_index"},
                  .video = {},
                  .begin = {"<start_of_image>", "boi_token_index"},
                  .end = {"<end_of_image>", "eoi_token_index"},
                  .around = "\n\n"};

constexpr PictureFamily kFamilies[] = {
    {"qwen2_vl", PicturePositions::kGrid, kQwenTokens},
    {"qwen2_5_vl", PicturePositions::kSeconds, kQwenTokens},
    {"qwen3_vl", PicturePositions::kFrames, kQwenTokens},
    {"qwen3_vl_moe", PicturePositions::kFrames, kQwenTokens},
    {"qwen3_5", PicturePositions::kFrames, kQwenTokens},
    {"qwen3_5_moe", PicturePositions::kFrames, kQwenTokens},
    {"gemma3", PicturePositions::kCounted, kGemma3Tokens, /*two_way=*/true, /*prints_begin=*/true},
};

/// transformers' default of vision_config.tokens_per_second.
constexpr double kTokensPerSecond = 4;

/// Returns the tokenizer's token. Its id in config.json must be the same.
PictureToken token_of(const Tokenizer& tokenizer, const PictureTokenName& name,
                      const JsonObject& config) {
  const auto& [text, key] = name;
  const auto id = tokenizer.id_of(text);
  if (!id) {
    throw UserError(fmt::format(
        "the model's tokenizer has no token {}, which stands in rows with pictures. Put the "
        "model's own tokenizer into its folder.",
        text));
  }
  if (config.has(key) && config.whole(key, 0, kMostIndexed) != *id) {
    config.fail(
        fmt::format("{} is {}, and the tokenizer's {} is {}. Put the model's own tokenizer "
                    "into its folder",
                    key, config.whole(key, 0, kMostIndexed), text, *id));
  }
  return {std::string(text), *id};
}

}  // namespace

const PictureFamily* picture_family(std::string_view model_type) {
  const auto* const family = std::ranges::find(kFamilies, model_type, &PictureFamily::model_type);
  return family == std::end(kFamilies) ? nullptr : family;
}

std::optional<PictureEncoding> picture_encoding_of(const std::string& folder,
                                                   const Tokenizer& tokenizer,
                                                   const DataSettings& config) {
  const std::string path = model_file(folder, "config.json");
  const nlohmann::json content = read_json_file(path, "model configuration");
  const JsonObject model(content, path);
  const PictureFamily* const family = picture_family(model.get<std::string>("model_type", ""));
  if (family == nullptr) return std::nullopt;
  PictureEncoding encoding;
  encoding.positions = family->positions;
  encoding.processor = load_picture_processor(folder);
  encoding.limits =
      limits_for(encoding.processor, config.image_max_pixels, config.image_min_pixels);
  const PictureTokenNames& tokens = family->tokens;
  encoding.image = token_of(tokenizer, tokens.image, model);
  encoding.begin = token_of(tokenizer, tokens.begin, model);
  encoding.end = token_of(tokenizer, tokens.end, model);
  encoding.around = tokens.around;
  encoding.two_way = family->two_way;
  encoding.prints_begin = family->prints_begin;
  if (!tokens.video.text.empty()) {
    encoding.video = token_of(tokenizer, tokens.video, model);
    encoding.video_processor = load_video_processor(folder, encoding.stamps_frames());
    encoding.video_limits = {config.video_max_pixels, config.video_min_pixels};
    encoding.video_sampling = {config.video_fps, config.video_maxlen};
    encoding.decodes_videos = on_bad_row_of(config) == OnBadRow::kSkip;
  }
  if (family->positions == PicturePositions::kSeconds) {
    encoding.tokens_per_second =
        model.has("vision_config")
            ? model.object("vision_config").get<double>("tokens_per_second", kTokensPerSecond)
            : kTokensPerSecond;
  }
  return encoding;
}

}  // namespace longspan
