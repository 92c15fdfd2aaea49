// Reads a picture processor from a model's folder.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/pictures/picture_processor.h"

namespace longspan {
namespace {

constexpr const char* kFile = "preprocessor_config.json";
constexpr const char* kNestedFile = "processor_config.json";
constexpr int64_t kMostSide = 1 << 14;
/// Most pixels of a resized picture, whose patches in fp32 then take 6 GB.
constexpr int64_t kMostProcessedPixels = int64_t{1} << 28;

/// Keys that do not change the pixels of a picture, or only with a flag that is refused.
const std::set<std::string>& idle_keys() {
  static const std::set<std::string> keys{"_valid_processor_keys",
                                          "crop_size",
                                          "default_to_square",
                                          "device",
                                          "disable_grouping",
                                          "feature_extractor_type",
                                          "image_seq_length",
                                          "input_data_format",
                                          "model_input_names",
                                          "pad_size",
                                          "pan_and_scan_max_num_crops",
                                          "pan_and_scan_min_crop_size",
                                          "pan_and_scan_min_ratio_to_activate",
                                          "processor_class",
                                          "return_tensors",
                                          "transformers_version",
                                          "use_fast"};
  return keys;
}

[[noreturn]] void refuse(const JsonObject& object, const std::string& key,
                         const std::string& wanted) {
  throw UserError(fmt::format("{}: \"{}\" is {}; supported is {}. Use a model with this processor.",
                              object.source(), key, object.json().at(key).dump(), wanted));
}

std::array<double, 3> three(const JsonObject& object, const std::string& key, bool divides) {
  const auto values = object.get<std::vector<double>>(key);
  const auto is_bad = [&](double value) {
    return !std::isfinite(value) || (divides && value == 0);
  };
  if (values.size() != 3 || std::any_of(values.begin(), values.end(), is_bad)) {
    refuse(object, key, "a list of three finite numbers, of image_std none 0");
  }
  return {values[0], values[1], values[2]};
}

/// Pixels of Qwen's processors: the keys of the processor itself win over those of `size`.
void read_pixels(const JsonObject& object, PictureProcessor& processor) {
  if (object.has("size")) {
    const JsonObject size = object.object("size");
    for (const auto& [key, value] : size.json().items()) {
      if (value.is_null()) continue;
      if (key != "shortest_edge" && key != "longest_edge") {
        refuse(size, key, "\"shortest_edge\" and \"longest_edge\", in pixels of the whole picture");
      }
    }
    const auto edge = [&](const char* key, const char* own) -> std::optional<int64_t> {
      if (!size.has(key) && object.has(own)) return std::nullopt;
      return size.whole(key, 1, kMostProcessedPixels);
    };
    processor.min_pixels = edge("shortest_edge", "min_pixels").value_or(0);
    processor.max_pixels = edge("longest_edge", "max_pixels").value_or(0);
  }
  if (object.has("min_pixels")) {
    processor.min_pixels = object.whole("min_pixels", 1, kMostProcessedPixels);
  }
  if (object.has("max_pixels")) {
    processor.max_pixels = object.whole("max_pixels", 1, kMostProcessedPixels);
  }
}

void read_square(const JsonObject& object, PictureProcessor& processor) {
  processor.side = 224;
  if (!object.contains("size")) return;
  const JsonObject size = object.object("size");
  for (const auto& [key, value] : size.json().items()) {
    if (!value.is_null() && key != "height" && key != "width") {
      refuse(size, key, "\"height\" and \"width\"");
    }
  }
  processor.side = size.whole("height", 1, kMostSide);
  if (size.whole("width", 1, kMostSide) != processor.side) {
    refuse(object, "size", "a height and a width that are equal");
  }
}

PictureProcessor processor_of(const JsonObject& object) {
  std::set<std::string> known = idle_keys();
  JsonObject reader = object;
  reader.record(known);
  PictureProcessor processor;
  using Kind = PictureProcessor::Kind;
  if (!reader.has("image_processor_type")) {
    reader.fail("the key image_processor_type is missing");
  }
  const auto type = reader.get<std::string>("image_processor_type");
  if (type == "Qwen2VLImageProcessor" || type == "Qwen2VLImageProcessorFast") {
    processor.kind = Kind::kQwenPatches;
  } else if (type == "Gemma3ImageProcessor" || type == "Gemma3ImageProcessorFast") {
    processor.kind = Kind::kSquare;
  } else {
    refuse(reader, "image_processor_type",
           "Qwen2VLImageProcessor or Gemma3ImageProcessor, also with Fast at the end");
  }
  // Unlike elsewhere, null is no default to transformers: a flag is then off, and a number missing.
  const auto is_on = [&](const char* flag, bool fallback) {
    return reader.get<bool>(flag, fallback && !reader.contains(flag));
  };
  for (const char* flag : {"do_resize", "do_rescale", "do_normalize"}) {
    if (!is_on(flag, true)) refuse(reader, flag, "true");
  }
  for (const char* flag : {"do_center_crop", "do_pad", "do_pan_and_scan"}) {
    if (is_on(flag, false)) refuse(reader, flag, "false");
  }
  for (const char* key : {"image_mean", "image_std", "merge_size", "patch_size", "resample",
                          "rescale_factor", "temporal_patch_size"}) {
    if (reader.contains(key) && !reader.has(key)) refuse(reader, key, "a value or no such key");
  }
  processor.whitens_transparent_colour = is_on("do_convert_rgb", true);
  if (reader.get<std::string>("data_format", "channels_first") != "channels_first") {
    refuse(reader, "data_format", "\"channels_first\"");
  }
  const bool is_qwen = processor.kind == Kind::kQwenPatches;
  const int64_t filter = reader.get<int64_t>("resample", is_qwen ? 3 : 2);
  if (filter != 2 && filter != 3) refuse(reader, "resample", "2 (bilinear) or 3 (bicubic)");
  using Filter = PictureProcessor::Filter;
  processor.filter = filter == 3 ? Filter::kBicubic : Filter::kBilinear;
  if (is_qwen) {
    const auto read = [&](const char* key, int64_t most, int64_t& value) {
      if (reader.has(key)) value = reader.whole(key, 1, most);
    };
    read("patch_size", 1024, processor.patch_size);
    read("merge_size", 64, processor.merge_size);
    read("temporal_patch_size", 64, processor.temporal_patch_size);
    read_pixels(reader, processor);
    processor.mean = {0.48145466, 0.4578275, 0.40821073};
    processor.std = {0.26862954, 0.26130258, 0.27577711};
  } else {
    processor.temporal_patch_size = processor.merge_size = 1;
    read_square(reader, processor);
    processor.mean = processor.std = {0.5, 0.5, 0.5};
  }
  if (reader.has("image_mean")) processor.mean = three(reader, "image_mean", false);
  if (reader.has("image_std")) processor.std = three(reader, "image_std", true);
  processor.rescale_factor = reader.get<double>("rescale_factor", processor.rescale_factor);
  if (!(processor.rescale_factor > 0) || !std::isfinite(processor.rescale_factor)) {
    refuse(reader, "rescale_factor", "a number above 0");
  }
  for (const auto& [key, value] : object.json().items()) {
    if (value.is_null() || known.count(key) != 0) continue;
    refuse(object, key, "a processor without this key");
  }
  return processor;
}

/// Tokens of a square picture, and its patches, which only config.json states.
void read_model(const std::string& folder, const nlohmann::json* nested,
                PictureProcessor& processor) {
  const std::string path = model_file(folder, "config.json");
  if (is_there(path)) {
    const nlohmann::json config = read_json_file(path, "model configuration");
    const JsonObject object(config, path);
    if (object.has("mm_tokens_per_image")) {
      processor.tokens_per_picture = object.whole("mm_tokens_per_image", 1, kMostSide);
    }
    if (object.has("vision_config")) {
      const JsonObject vision = object.object("vision_config");
      if (vision.has("patch_size")) {
        processor.patch_size = vision.whole("patch_size", 1, processor.side);
      }
    }
  }
  if (nested != nullptr) {
    const JsonObject object(*nested, folder + "/" + kNestedFile);
    if (object.has("image_seq_length")) {
      processor.tokens_per_picture = object.whole("image_seq_length", 1, kMostSide);
    }
  }
  processor.temporal_patch_size = 0;
  if (processor.tokens_per_picture == 0) return;
  const int64_t patches = processor.side / processor.patch_size,
                tokens = std::llround(std::sqrt(processor.tokens_per_picture));
  if (tokens * tokens != processor.tokens_per_picture || patches % tokens != 0 ||
      patches * processor.patch_size != processor.side) {
    throw UserError(fmt::format(
        "{}: pictures of {} pixels a side, in patches of {}, cannot have {} tokens each: tokens "
        "must be squares of whole patches. Take all files from the same model.",
        folder, processor.side, processor.patch_size, processor.tokens_per_picture));
  }
  processor.merge_size = patches / tokens;
}

}  // namespace

PictureProcessor load_picture_processor(const std::string& folder) {
  std::optional<nlohmann::json> nested;
  const std::string nested_path = model_file(folder, kNestedFile);
  if (is_there(nested_path)) nested = read_json_file(nested_path, "processor configuration");
  PictureProcessor processor;
  if (nested && JsonObject(*nested, nested_path).has("image_processor")) {
    processor = processor_of(JsonObject(*nested, nested_path).object("image_processor"));
  } else {
    const std::string path = model_file(folder, kFile);
    if (!is_there(path)) {
      throw UserError(fmt::format(
          "{}: the folder has no {}, and no {} with the key image_processor; pictures need one of "
          "them. Copy it from the published model.",
          folder, kFile, kNestedFile));
    }
    const nlohmann::json object = read_json_file(path, "picture processor");
    processor = processor_of(JsonObject(object, path));
  }
  if (processor.kind == PictureProcessor::Kind::kSquare) {
    read_model(folder, nested ? &*nested : nullptr, processor);
  }
  return processor;
}

}  // namespace longspan
