// The default picture processors of transformers 5 (torchvision's), and LLaMA-Factory's own limits,
// which apply before the processors. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "longspan/pictures/raster.h"
#include "longspan/spec/picture_grid.h"

namespace longspan {

/// A model's picture processor as data.
struct PictureProcessor {
  enum class Kind {
    kQwenPatches,  // Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5: patches of a picture of any size
    kSquare,       // Gemma 3: one size for all
  };
  enum class Filter { kBilinear, kBicubic };

  Kind kind = Kind::kQwenPatches;
  int64_t patch_size = 14;
  int64_t temporal_patch_size = 2;  // kSquare: 0, as in VisionSpec
  int64_t merge_size = 2;
  int64_t min_pixels = 56 * 56, max_pixels = 28 * 28 * 1280;  // kQwenPatches
  int64_t side = 0;                                           // kSquare
  int64_t tokens_per_picture = 0;                             // kSquare; 0: unknown
  Filter filter = Filter::kBicubic;
  std::array<double, 3> mean{}, std{};
  double rescale_factor = 1 / 255.0;
  bool whitens_transparent_colour = true;  // do_convert_rgb: see Raster::key

  /// Both sides of a resized picture are multiples of this number.
  int64_t factor() const { return patch_size * merge_size; }
};

/// Reads processor_config.json or preprocessor_config.json of a model's folder. Throws UserError
/// for a key whose value changes the pixels in a way that is not supported, and for unknown keys.
PictureProcessor load_picture_processor(const std::string& folder);

/// LLaMA-Factory's own limits, applied before the processor.
struct PictureLimits {
  int64_t max_pixels = 768 * 768, min_pixels = 32 * 32;
  bool as_qwen2_vl = true;  // also: sides of at least 28, ratios of at most 200
};

/// Returns the limits that LLaMA-Factory applies before this processor. Processors of Qwen's models
/// get as_qwen2_vl.
PictureLimits limits_for(const PictureProcessor& processor, int64_t max_pixels, int64_t min_pixels);

/// A step of LLaMA-Factory's resizing.
struct ResizeStep {
  PictureSize size;
  bool as_rgb = false;  // after conversion to RGB, in place of the picture's own mode
};

/// Returns the resizes that the limits require, in order. `place`: begins the error. Throws
/// UserError where a side would vanish.
std::vector<ResizeStep> limiting_steps(PictureSize size, const PictureLimits& limits,
                                       const std::string& place = "A picture");

/// Returns the size after LLaMA-Factory's limits. Throws as limiting_steps().
PictureSize limited_size(PictureSize size, const PictureLimits& limits,
                         const std::string& place = "A picture");

/// Returns the size to which the processor resizes. Throws UserError for a ratio above 200.
PictureSize processed_size(PictureSize size, const PictureProcessor& processor,
                           const std::string& place = "A picture");

/// Returns the patches of a picture of this size. Throws as processed_size().
PictureGrid grid_of(PictureSize size, const PictureProcessor& processor,
                    const std::string& place = "A picture");

/// Returns the tokens of a picture in a row. Throws UserError where the model's files do not give
/// the number.
int64_t num_features(const PictureGrid& grid, const PictureProcessor& processor);

}  // namespace longspan
