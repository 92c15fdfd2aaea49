// Pixel values of pictures, equal bit for bit to the results of transformers 5's processors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/pictures/picture_processor.h"
#include "longspan/pictures/raster.h"
#include "longspan/spec/picture_grid.h"

namespace longspan {

/// P: patches in the order of their tokens: blocks of merge_size^2 neighbours. X: channels, frames
/// of a temporal patch, rows and columns of a patch.
struct PixelValues {
  at::Tensor patches_PX;  // fp32
  PictureGrid grid;
};

/// Decodes a picture file and computes its pixel values on the CPU. With `limits`, LLaMA-Factory's
/// resizing comes first. Throws UserError as decode_picture() and grid_of() do; the message begins
/// with `place`.
PixelValues pixel_values(std::string_view bytes, const std::string& place,
                         const PictureProcessor& processor,
                         const std::optional<PictureLimits>& limits,
                         int64_t most_pixels = kMostPixels);

/// The overload for a decoded picture. Throws UserError as grid_of() does.
PixelValues pixel_values(Raster raster, const std::string& place, const PictureProcessor& processor,
                         const std::optional<PictureLimits>& limits);

/// Returns the picture in RGB, after LLaMA-Factory's limits if they are given. Throws UserError.
Raster limited_picture(std::string_view bytes, const std::string& place,
                       const std::optional<PictureLimits>& limits,
                       int64_t most_pixels = kMostPixels);

/// Returns a decoded picture or frame in RGB, after LLaMA-Factory's limits. Throws UserError.
Raster limited(Raster raster, const PictureLimits& limits, const std::string& place);

/// Returns the patches of a temporal patch of a video, fp32 [h * w, X]. `frames`: the
/// temporal_patch_size frames of the patch, in RGB. `grid`: the grid of the video.
at::Tensor frame_patches(const std::vector<Raster>& frames, const PictureProcessor& processor,
                         const PictureGrid& grid);

}  // namespace longspan
