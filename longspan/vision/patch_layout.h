// Places of patches in their frames. P: patches of all frames, in merge blocks: rows of blocks,
// blocks of a row, then the rows and patches of a block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "longspan/spec/picture_grid.h"
#include "longspan/spec/vision_spec.h"

namespace longspan {

/// Runs of patches that attend to each other, gathered by length.
struct PatchRuns {
  /// int64 [P]: the patches, runs of equal length behind each other; undefined: they are so.
  at::Tensor order_P;
  at::Tensor places_P;  // the inverse
  /// Numbers of runs and their lengths, in that order.
  std::vector<std::pair<int64_t, int64_t>> lengths;
};

struct PatchLayout {
  at::Tensor rows_P, columns_P;    // int64: of each patch in its frame
  at::Tensor heights_P, widths_P;  // int64: of its frame, in patches
  PatchRuns frames, windows;       // windows: only with VisionSpec::windows
};

/// Returns the layout of the patches of pictures behind each other, on `device`.
PatchLayout layout_of(const VisionSpec& vision, std::span<const PictureGrid> grids,
                      at::Device device);

}  // namespace longspan
