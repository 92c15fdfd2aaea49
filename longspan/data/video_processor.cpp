#include "longspan/data/video_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"

namespace longspan {

namespace {

constexpr const char* kFile = "video_preprocessor_config.json";
constexpr const char* kFileOfPictures = "preprocessor_config.json";
constexpr int64_t kMostPatch = 1024, kMostVideoPixels = int64_t{1} << 40;
constexpr double kMostRatio = 200;

/// Keys of both files that change pixels. Frames are read by the processor of pictures.
constexpr const char* kPixelKeys[] = {"patch_size",   "temporal_patch_size", "merge_size",
                                      "image_mean",   "image_std",           "rescale_factor",
                                      "resample",     "do_resize",           "do_rescale",
                                      "do_normalize", "do_convert_rgb"};

/// Throws UserError where videos have other pixels than pictures.
void require_pixels_of_pictures(const JsonObject& video, const std::string& folder) {
  const std::string path = model_file(folder, kFileOfPictures);
  if (!is_there(path)) return;
  const nlohmann::json pictures = read_json_file(path, "configuration of the model's processor");
  for (const char* key : kPixelKeys) {
    const nlohmann::json own = video.json().value(key, nlohmann::json());
    const nlohmann::json theirs = pictures.value(key, nlohmann::json());
    if (own.is_null() || theirs.is_null() || own == theirs) continue;
    video.fail(
        fmt::format("{} is {}, and {} in {}. Videos with other pixels than pictures are not "
                    "supported; give both files the same value",
                    key, own.dump(), theirs.dump(), kFileOfPictures));
  }
}

double side(double pixels, double factor) { return std::nearbyint(pixels / factor) * factor; }

}  // namespace

VideoProcessor load_video_processor(const std::string& folder, bool limits_all_frames) {
  std::string path = model_file(folder, kFile);
  if (!is_there(path)) path = model_file(folder, kFileOfPictures);
  const nlohmann::json content = read_json_file(path, "configuration of the model's processor");
  const JsonObject object(content, path);
  require_pixels_of_pictures(object, folder);
  VideoProcessor processor{.limits_all_frames = limits_all_frames};
  const auto whole = [&](const char* key, int64_t fallback, int64_t most) {
    return object.has(key) ? object.whole(key, 1, most) : fallback;
  };
  processor.patch_size = whole("patch_size", limits_all_frames ? 16 : 14, kMostPatch);
  processor.temporal_patch_size = whole("temporal_patch_size", 2, kMostPatch);
  processor.merge_size = whole("merge_size", 2, kMostPatch);
  // transformers' defaults, by the pixels that a feature covers.
  const int64_t of_feature = limits_all_frames ? 32 * 32 : 28 * 28;
  processor.min_pixels = 128 * of_feature;
  processor.max_pixels = 768 * of_feature;
  if (object.has("size")) {
    const JsonObject size = object.object("size");
    processor.min_pixels = size.whole("shortest_edge", 1, kMostVideoPixels);
    processor.max_pixels = size.whole("longest_edge", 1, kMostVideoPixels);
  }
  if (!limits_all_frames) {
    processor.min_pixels = whole("min_pixels", processor.min_pixels, kMostVideoPixels);
    processor.max_pixels = whole("max_pixels", processor.max_pixels, kMostVideoPixels);
  }
  if (object.has("cap_pixels_per_frame") && object.get<bool>("cap_pixels_per_frame")) {
    object.fail("cap_pixels_per_frame: true is not supported; set it to false");
  }
  return processor;
}

PictureGrid video_grid_of(int64_t num_frames, PictureSize size, const VideoProcessor& processor) {
  const int64_t temporal = processor.temporal_patch_size;
  const auto factor = static_cast<double>(processor.patch_size * processor.merge_size);
  auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  if (processor.limits_all_frames && (height < factor || width < factor)) {
    const double scale = std::max(factor / height, factor / width);
    height = std::trunc(height * scale);
    width = std::trunc(width * scale);
  }
  if (std::max(height, width) / std::min(height, width) > kMostRatio) {
    throw UserError(fmt::format(
        "a frame of {} x {} pixels: one side is more than {} times the other; cut the frames",
        size.width, size.height, kMostRatio));
  }
  double rows = side(height, factor), columns = side(width, factor);
  const auto frames = static_cast<double>(processor.limits_all_frames ? num_frames : 1);
  const double counted =
      processor.limits_all_frames ? side(frames, static_cast<double>(temporal)) : 1;
  const auto most = static_cast<double>(processor.max_pixels),
             least = static_cast<double>(processor.min_pixels);
  if (counted * rows * columns > most) {
    const double beta = std::sqrt(frames * height * width / most);
    rows = std::max(factor, std::floor(height / beta / factor) * factor);
    columns = std::max(factor, std::floor(width / beta / factor) * factor);
  } else if (counted * rows * columns < least) {
    const double beta = std::sqrt(least / (frames * height * width));
    rows = std::ceil(height * beta / factor) * factor;
    columns = std::ceil(width * beta / factor) * factor;
  }
  return {(num_frames + temporal - 1) / temporal, static_cast<int64_t>(rows) / processor.patch_size,
          static_cast<int64_t>(columns) / processor.patch_size};
}

}  // namespace longspan
