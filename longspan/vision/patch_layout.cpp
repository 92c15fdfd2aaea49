#include "longspan/vision/patch_layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace longspan {
namespace {

at::Tensor indices(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::TensorOptions(at::kLong)).to(device);
}

/// Gathers runs by length. `runs`: the patches of each.
PatchRuns grouped(const std::vector<std::vector<int64_t>>& runs, at::Device device) {
  std::map<int64_t, std::vector<size_t>> by_length;
  for (size_t i = 0; i < runs.size(); ++i) by_length[std::ssize(runs[i])].push_back(i);
  PatchRuns patch_runs;
  std::vector<int64_t> order;
  for (const auto& [length, members] : by_length) {
    patch_runs.lengths.emplace_back(std::ssize(members), length);
    for (const size_t i : members) order.insert(order.end(), runs[i].begin(), runs[i].end());
  }
  if (std::ranges::is_sorted(order)) return patch_runs;
  std::vector<int64_t> places(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    places[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  patch_runs.order_P = indices(order, device);
  patch_runs.places_P = indices(places, device);
  return patch_runs;
}

}  // namespace

PatchLayout layout_of(const VisionSpec& vision, std::span<const PictureGrid> grids,
                      at::Device device) {
  const int64_t merge = vision.merge_size;
  std::vector<int64_t> rows, columns, heights, widths;
  std::vector<std::vector<int64_t>> frames, windows;
  for (const PictureGrid& grid : grids) {
    const int64_t side = vision.windows ? vision.windows->side * merge : 0;
    const int64_t windows_across = side > 0 ? (grid.w + side - 1) / side : 0,
                  windows_down = side > 0 ? (grid.h + side - 1) / side : 0;
    for (int64_t t = 0; t < grid.t; ++t) {
      std::vector<int64_t>& frame = frames.emplace_back();
      const size_t first_window = windows.size();
      windows.resize(first_window + static_cast<size_t>(windows_across * windows_down));
      for (int64_t i = 0; i < grid.h * grid.w; ++i) {
        const int64_t in_block = i % (merge * merge), block = i / (merge * merge);
        const int64_t row = block / (grid.w / merge) * merge + in_block / merge,
                      column = block % (grid.w / merge) * merge + in_block % merge;
        const auto patch = static_cast<int64_t>(rows.size());
        rows.push_back(row);
        columns.push_back(column);
        heights.push_back(grid.h);
        widths.push_back(grid.w);
        frame.push_back(patch);
        if (side == 0) continue;
        windows[first_window + static_cast<size_t>(row / side * windows_across + column / side)]
            .push_back(patch);
      }
    }
  }
  return {.rows_P = indices(rows, device),
          .columns_P = indices(columns, device),
          .heights_P = indices(heights, device),
          .widths_P = indices(widths, device),
          .frames = grouped(frames, device),
          .windows = vision.windows ? grouped(windows, device) : PatchRuns{}};
}

}  // namespace longspan
