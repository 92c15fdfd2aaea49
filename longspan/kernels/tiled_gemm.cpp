#include "longspan/kernels/tiled_gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

namespace longspan {
namespace {

/// Depth of a packed block; rows of the left one, which fits into a second-level cache with a panel
/// of the right one; columns of the right one.
constexpr int64_t kDepth = 256, kRows = 192, kColumns = 2048;
/// Fewer rows, columns or numbers of a sum than this are left to a library.
constexpr int64_t kFewest = 32;

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// Memory of this thread for packed matrices, kept for its next gemm.
class Scratch {
 public:
  float* of(int64_t size) {
    if (size > size_) {
      memory_.reset(new (std::align_val_t{64}) float[static_cast<size_t>(size)]);
      size_ = size;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Free> memory_;
  int64_t size_ = 0;
};
thread_local Scratch left_scratch, right_scratch;

}  // namespace

bool tiled_gemm_takes(const at::Tensor& a, const at::Tensor& b) {
  for (const at::Tensor* matrix : {&a, &b})
    if (!matrix->is_cpu() || matrix->scalar_type() != at::kFloat) return false;
  return std::min({a.size(0), a.size(1), b.size(1)}) >= kFewest;
}

void tiled_gemm_out(at::Tensor c, const at::Tensor& a, const at::Tensor& b, double scale, bool add,
                    const GemmTiles& tiles) {
  // The tiles write rows.
  if (c.stride(1) != 1) return tiled_gemm_out(c.t(), b.t(), a.t(), scale, add, tiles);
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1), ldc = c.stride(0);
  const auto *left = a.const_data_ptr<float>(), *right = b.const_data_ptr<float>();
  auto* to = c.mutable_data_ptr<float>();
  const int64_t num_threads = at::get_num_threads();
  // Blocks of rows, as many for each thread. Where there are few rows, their columns are divided.
  const int64_t num_blocks =
      std::min(ceil_div(M, tiles.rows), ceil_div(ceil_div(M, kRows), num_threads) * num_threads);
  const int64_t block_rows = ceil_div(ceil_div(M, num_blocks), tiles.rows) * tiles.rows;
  const int64_t num_parts = ceil_div(num_threads, num_blocks);

  for (int64_t j0 = 0; j0 < N; j0 += kColumns) {
    const int64_t columns = std::min(kColumns, N - j0),
                  num_panels = ceil_div(columns, tiles.columns);
    for (int64_t k0 = 0; k0 < K; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, K - k0);
      float* packed = right_scratch.of(num_panels * tiles.columns * depth);
      at::parallel_for(0, num_panels, 1, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * tiles.columns;
        tiles.pack_right(right + k0 * b.stride(0) + (j0 + first) * b.stride(1), b.stride(0),
                         b.stride(1), depth, std::min(end * tiles.columns, columns) - first,
                         packed + first * depth);
      });
      at::parallel_for(0, num_blocks * num_parts, 1, [&](int64_t begin, int64_t end) {
        float* rows = left_scratch.of(block_rows * depth);
        for (int64_t task = begin; task < end; ++task) {
          const int64_t row = task / num_parts * block_rows, part = task % num_parts;
          const int64_t num_rows = std::min(block_rows, M - row);
          const int64_t first = num_panels * part / num_parts * tiles.columns;
          const int64_t last =
              std::min(num_panels * (part + 1) / num_parts * tiles.columns, columns);
          if (num_rows <= 0 || first >= last) continue;
          tiles.pack_left(left + row * a.stride(0) + k0 * a.stride(1), a.stride(0), a.stride(1),
                          num_rows, depth, static_cast<float>(scale), rows);
          tiles.multiply(num_rows, last - first, depth, rows, packed + first * depth,
                         to + row * ldc + j0 + first, ldc, add || k0 > 0);
        }
      });
    }
  }
}

}  // namespace longspan
