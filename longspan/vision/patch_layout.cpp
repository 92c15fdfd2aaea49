#include "longspan/vision/patch_layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace longspan {
namespace {

at::Tensor indices(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::TensorOptions(at::kLong)).to(device);
}

/// Appends a block of patches that attend to each other.
void append_run(std::vector<Block>& blocks, int64_t begin, int64_t length) {
  blocks.push_back({.q_begin = begin,
                    .q_length = length,
                    .k_begin = begin,
                    .k_length = length,
                    .causal = false});
}

}  // namespace

PatchLayout layout_of(const VisionSpec& vision, std::span<const PictureGrid> grids,
                      at::Device device) {
  const int64_t merge = vision.merge_size;
  const int64_t side = vision.windows ? vision.windows->side * merge : 0;
  std::vector<int64_t> order, rows, columns, heights, widths;
  PatchLayout layout;
  for (const PictureGrid& grid : grids) {
    const int64_t across = side > 0 ? (grid.w + side - 1) / side : 1,
                  down = side > 0 ? (grid.h + side - 1) / side : 1;
    for (int64_t t = 0; t < grid.t; ++t) {
      const auto first = std::ssize(order);
      std::vector<std::vector<int64_t>> windows(static_cast<size_t>(across * down));
      const auto place_of = [&](int64_t i) {
        const int64_t in_block = i % (merge * merge), block = i / (merge * merge);
        return std::pair(block / (grid.w / merge) * merge + in_block / merge,
                         block % (grid.w / merge) * merge + in_block % merge);
      };
      for (int64_t i = 0; i < grid.h * grid.w; ++i) {
        const auto [row, column] = place_of(i);
        const int64_t window = side > 0 ? row / side * across + column / side : 0;
        windows[static_cast<size_t>(window)].push_back(i);
      }
      for (const std::vector<int64_t>& window : windows) {
        if (side > 0) append_run(layout.windows, std::ssize(order), std::ssize(window));
        for (const int64_t i : window) {
          const auto [row, column] = place_of(i);
          order.push_back(first + i);
          rows.push_back(row);
          columns.push_back(column);
          heights.push_back(grid.h);
          widths.push_back(grid.w);
        }
      }
      append_run(layout.frames, first, grid.h * grid.w);
    }
  }
  layout.rows_P = indices(rows, device);
  layout.columns_P = indices(columns, device);
  layout.heights_P = indices(heights, device);
  layout.widths_P = indices(widths, device);
  if (std::ranges::is_sorted(order)) return layout;
  // A window has whole merge blocks, whose patches stay behind each other.
  const int64_t merged = merge * merge;
  std::vector<int64_t> places(order.size() / static_cast<size_t>(merged));
  for (size_t i = 0; i < places.size(); ++i) {
    places[static_cast<size_t>(order[i * static_cast<size_t>(merged)] / merged)] =
        static_cast<int64_t>(i);
  }
  layout.order_P = indices(order, device);
  layout.places_F = indices(places, device);
  return layout;
}

}  // namespace longspan
