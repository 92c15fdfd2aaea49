// Places, frames and windows of patches, against plain loops over the positions of a picture.
#include "longspan/vision/patch_layout.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <set>

namespace longspan {
namespace {

using Runs = std::set<std::set<int64_t>>;

/// The runs of patches that attend to each other, checked to cover every patch once.
Runs runs_of(const std::vector<Block>& blocks, const PatchLayout& layout, int64_t num_patches) {
  const at::Tensor order = layout.order_P.defined() ? layout.order_P : at::arange(num_patches);
  Runs runs;
  int64_t next = 0;
  for (const Block& block : blocks) {
    CHECK(block.q_begin == next);
    CHECK(block.k_begin == next);
    CHECK(block.k_length == block.q_length);
    CHECK_FALSE(block.causal);
    std::set<int64_t> run;
    for (int64_t k = 0; k < block.q_length; ++k) run.insert(order[next++].item<int64_t>());
    CHECK(std::ssize(run) == block.q_length);
    CHECK(runs.insert(run).second);
  }
  CHECK(next == num_patches);
  return runs;
}

TEST_CASE("patch layout: rows and columns in merge blocks") {
  VisionSpec vision;
  vision.merge_size = 2;
  const PictureGrid grids[] = {{1, 4, 6}, {2, 2, 4}};
  const PatchLayout layout = layout_of(vision, grids, at::kCPU);
  int64_t patch = 0;
  for (const PictureGrid& grid : grids) {
    for (int64_t t = 0; t < grid.t; ++t) {
      for (int64_t block_row = 0; block_row < grid.h; block_row += 2) {
        for (int64_t block_column = 0; block_column < grid.w; block_column += 2) {
          for (const int64_t row : {block_row, block_row + 1}) {
            for (const int64_t column : {block_column, block_column + 1}) {
              CHECK(layout.rows_P[patch].item<int64_t>() == row);
              CHECK(layout.columns_P[patch].item<int64_t>() == column);
              CHECK(layout.heights_P[patch].item<int64_t>() == grid.h);
              CHECK(layout.widths_P[patch].item<int64_t>() == grid.w);
              ++patch;
            }
          }
        }
      }
    }
  }
  CHECK(layout.rows_P.numel() == patch);
}

TEST_CASE("patch layout: patches attend within their frame, or within its windows") {
  VisionSpec vision;
  vision.merge_size = 2;
  vision.windows = VisionSpec::Windows{.side = 2, .full_blocks = {}};
  const PictureGrid grids[] = {{1, 4, 6}, {2, 8, 10}, {1, 2, 2}, {1, 4, 6}};
  const PatchLayout layout = layout_of(vision, grids, at::kCPU);
  // Back in the order of the frames.
  const at::Tensor places_P = at::argsort(layout.order_P),
                   rows_P = layout.rows_P.index_select(0, places_P),
                   columns_P = layout.columns_P.index_select(0, places_P);
  Runs frames, windows;
  int64_t begin = 0;
  for (const PictureGrid& grid : grids) {
    for (int64_t t = 0; t < grid.t; ++t) {
      std::map<std::pair<int64_t, int64_t>, std::set<int64_t>> by_window;
      std::set<int64_t> frame;
      for (int64_t patch = begin; patch < begin + grid.h * grid.w; ++patch) {
        frame.insert(patch);
        // Windows of two merged patches: four patches.
        by_window[{rows_P[patch].item<int64_t>() / 4, columns_P[patch].item<int64_t>() / 4}].insert(
            patch);
      }
      frames.insert(frame);
      for (const auto& [place, window] : by_window) windows.insert(window);
      begin += grid.h * grid.w;
    }
  }
  CHECK(runs_of(layout.frames, layout, begin) == frames);
  CHECK(runs_of(layout.windows, layout, begin) == windows);
  // A feature is of the four patches at its place.
  for (int64_t feature = 0; feature < begin / 4; ++feature) {
    const int64_t place = layout.places_F[feature].item<int64_t>();
    for (int64_t k = 0; k < 4; ++k) {
      CHECK(layout.order_P[place * 4 + k].item<int64_t>() == feature * 4 + k);
    }
  }
}

TEST_CASE("patch layout: no pictures") {
  VisionSpec vision;
  vision.merge_size = 2;
  const PatchLayout layout = layout_of(vision, {}, at::kCPU);
  CHECK(layout.rows_P.numel() == 0);
  CHECK(layout.frames.empty());
}

}  // namespace
}  // namespace longspan
