#include "longspan/pictures/picture_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

/// Greatest ratio of the sides, of LLaMA-Factory and of Qwen's processors.
constexpr double kMostRatio = 200;
/// Sides and ratio to which LLaMA-Factory changes pictures for Qwen2-VL.
constexpr int64_t kLeastSide = 28, kSqueezedRatio = 180;

double ratio(int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

PictureSize scaled(PictureSize size, int64_t pixels, const std::string& place) {
  const double factor = std::sqrt(ratio(pixels, size.width * size.height));
  const PictureSize result{static_cast<int64_t>(static_cast<double>(size.width) * factor),
                           static_cast<int64_t>(static_cast<double>(size.height) * factor)};
  if (result.width < 1 || result.height < 1) {
    throw UserError(fmt::format(
        "{}: a picture of {} x {} pixels, resized to {} pixels, would have a side of less than one "
        "pixel. Crop it or remove it.",
        place, size.width, size.height, pixels));
  }
  return result;
}

/// Python's round(): halves go to the even number.
int64_t rounded_to(int64_t side, int64_t factor) {
  return static_cast<int64_t>(std::nearbyint(ratio(side, factor))) * factor;
}

}  // namespace

PictureLimits limits_for(const PictureProcessor& processor, int64_t max_pixels,
                         int64_t min_pixels) {
  return {.max_pixels = max_pixels,
          .min_pixels = min_pixels,
          .as_qwen2_vl = processor.kind == PictureProcessor::Kind::kQwenPatches};
}

std::vector<ResizeStep> limiting_steps(PictureSize size, const PictureLimits& limits,
                                       const std::string& place) {
  std::vector<ResizeStep> steps;
  const auto resize = [&](PictureSize to, bool as_rgb) {
    steps.push_back({to, as_rgb});
    size = to;
  };
  if (size.width * size.height > limits.max_pixels) {
    resize(scaled(size, limits.max_pixels, place), false);
  }
  if (size.width * size.height < limits.min_pixels) {
    resize(scaled(size, limits.min_pixels, place), false);
  }
  if (!limits.as_qwen2_vl) return steps;
  if (std::min(size.width, size.height) < kLeastSide) {
    resize({std::max(size.width, kLeastSide), std::max(size.height, kLeastSide)}, true);
  }
  if (ratio(size.width, size.height) > kMostRatio) {
    resize({size.height * kSqueezedRatio, size.height}, true);
  }
  if (ratio(size.height, size.width) > kMostRatio) {
    resize({size.width, size.width * kSqueezedRatio}, true);
  }
  return steps;
}

PictureSize limited_size(PictureSize size, const PictureLimits& limits, const std::string& place) {
  const std::vector<ResizeStep> steps = limiting_steps(size, limits, place);
  return steps.empty() ? size : steps.back().size;
}

PictureSize processed_size(PictureSize size, const PictureProcessor& processor,
                           const std::string& place) {
  if (processor.kind == PictureProcessor::Kind::kSquare) return {processor.side, processor.side};
  const auto [width, height] = size;
  if (ratio(std::max(width, height), std::min(width, height)) > kMostRatio) {
    throw UserError(fmt::format(
        "{}: a picture of {} x {} pixels was given; the longer side may have at most {} times the "
        "pixels of the shorter one. Crop it or remove it.",
        place, width, height, kMostRatio));
  }
  const int64_t factor = processor.factor();
  const double side_factor = static_cast<double>(factor);
  PictureSize result{rounded_to(width, factor), rounded_to(height, factor)};
  if (result.width * result.height > processor.max_pixels) {
    const double beta = std::sqrt(ratio(height * width, processor.max_pixels));
    const auto fit = [&](int64_t side) {
      const double blocks = std::floor(static_cast<double>(side) / beta / side_factor);
      return std::max(factor, static_cast<int64_t>(blocks) * factor);
    };
    result = {fit(width), fit(height)};
  } else if (result.width * result.height < processor.min_pixels) {
    const double beta = std::sqrt(ratio(processor.min_pixels, height * width));
    const auto fit = [&](int64_t side) {
      const double blocks = std::ceil(static_cast<double>(side) * beta / side_factor);
      return static_cast<int64_t>(blocks) * factor;
    };
    result = {fit(width), fit(height)};
  }
  if (result.width < factor || result.height < factor) {
    throw UserError(fmt::format(
        "{}: a picture of {} x {} pixels has a side that is too short for blocks of {} x {} pixels "
        "of the picture processor. Make it larger or remove it.",
        place, width, height, factor, factor));
  }
  return result;
}

PictureGrid grid_of(PictureSize size, const PictureProcessor& processor, const std::string& place) {
  const PictureSize to = processed_size(size, processor, place);
  return {.t = 1, .h = to.height / processor.patch_size, .w = to.width / processor.patch_size};
}

int64_t num_features(const PictureGrid& grid, const PictureProcessor& processor) {
  if (processor.kind == PictureProcessor::Kind::kQwenPatches) {
    return grid.num_patches() / (processor.merge_size * processor.merge_size);
  }
  if (processor.tokens_per_picture == 0) {
    throw UserError(
        "The model's folder does not say how many tokens a picture has: image_seq_length is "
        "missing "
        "in processor_config.json, and mm_tokens_per_image in config.json. Copy both files from "
        "the "
        "published model.");
  }
  return processor.tokens_per_picture;
}

}  // namespace longspan
