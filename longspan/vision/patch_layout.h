// Places of patches in their frames. P: patches of all frames. A frame is divided into blocks of
// merge_size^2 patches; the patches of a block follow each other, row by row, and the blocks follow
// each other, row by row. F: features, one for each block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/spec/picture_grid.h"
#include "longspan/spec/vision_spec.h"

namespace longspan {

/// The order in which a tower computes patches: frame by frame and, with windows, window by window
/// in a frame. Patches that attend to each other are consecutive.
struct PatchLayout {
  /// int64. order_P: for each patch of the tower's order, the patch's index in the order of the
  /// frames. places_F: for each feature in the order of the frames, the feature's index in the
  /// tower's order. Undefined: both orders are the same.
  at::Tensor order_P, places_F;
  at::Tensor rows_P, columns_P;        // int64: place of each patch in its frame
  at::Tensor heights_P, widths_P;      // int64: size in patches of each patch's frame
  std::vector<Block> frames, windows;  // windows: only with VisionSpec::windows
};

/// Returns the layout of the patches of consecutive pictures, on `device`.
PatchLayout layout_of(const VisionSpec& vision, std::span<const PictureGrid> grids,
                      at::Device device);

}  // namespace longspan
