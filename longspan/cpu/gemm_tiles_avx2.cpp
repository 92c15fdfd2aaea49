// AVX2 and FMA: 6 x 2 sums of 8 floats fill 12 of the 16 registers.
#include "longspan/cpu/gemm_tiles.h"

#if defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#define PANEL 2
#define ROWS 6
#include "longspan/cpu/tile_products.h"

namespace longspan {
namespace {

using namespace tiles;

void pack_left(const float* a, int64_t row_stride, int64_t depth_stride, int64_t num_rows,
               int64_t depth, float scale, float* to) {
  for (int64_t i = 0; i < num_rows; i += ROWS, to += ROWS * depth) {
    const float* from = a + i * row_stride;
    if (i + ROWS <= num_rows) {
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t r = 0; r < ROWS; ++r)
          to[k * ROWS + r] = scale * from[r * row_stride + k * depth_stride];
    } else {
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t r = 0; r < ROWS; ++r)
          to[k * ROWS + r] =
              i + r < num_rows ? scale * from[r * row_stride + k * depth_stride] : 0.0f;
    }
  }
}

/// A panel whose columns lie one after the other: squares are transposed.
void pack_columns(const float* b, int64_t column_stride, int64_t depth, float* to) {
  int64_t k = 0;
  for (; k + LANES <= depth; k += LANES)
    for (int64_t j = 0; j < kPanel; j += LANES) {
      Vector square[LANES];
#pragma GCC unroll 8
      for (int64_t r = 0; r < LANES; ++r) square[r] = load(b + (j + r) * column_stride + k);
      transpose(square);
#pragma GCC unroll 8
      for (int64_t r = 0; r < LANES; ++r) store(to + (k + r) * kPanel + j, square[r]);
    }
  for (; k < depth; ++k)
    for (int64_t j = 0; j < kPanel; ++j) to[k * kPanel + j] = b[j * column_stride + k];
}

void pack_right(const float* b, int64_t depth_stride, int64_t column_stride, int64_t depth,
                int64_t num_columns, float* to) {
  for (int64_t j = 0; j < num_columns; j += kPanel, to += kPanel * depth) {
    const float* from = b + j * column_stride;
    const bool whole = j + kPanel <= num_columns;
    if (whole && column_stride == 1) {
      pack(from, depth_stride, depth, kPanel, 1.0f, to);
    } else if (whole && depth_stride == 1) {
      pack_columns(from, column_stride, depth, to);
    } else {
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t c = 0; c < kPanel; ++c)
          to[k * kPanel + c] =
              j + c < num_columns ? from[k * depth_stride + c * column_stride] : 0.0f;
    }
  }
}

/// A tile of which c has only some rows or columns.
void multiply_edge(int64_t num_rows, int64_t num_columns, int64_t depth, const float* left,
                   const float* right, float* c, int64_t ldc, bool add) {
  float tile[ROWS * kPanel];
  micro_tile<ROWS, PANEL>(depth, left, 1, ROWS, right, tile, kPanel, Fresh{});
  for (int64_t i = 0; i < num_rows; ++i)
    for (int64_t j = 0; j < num_columns; ++j) {
      float& to = c[i * ldc + j];
      to = add ? to + tile[i * kPanel + j] : tile[i * kPanel + j];
    }
}

/// A panel of the right matrix stays in the first-level cache while the left matrix passes by from
/// the second.
void multiply(int64_t num_rows, int64_t num_columns, int64_t depth, const float* left,
              const float* right, float* c, int64_t ldc, bool add) {
  for (int64_t j = 0; j < num_columns; j += kPanel) {
    const float* panel = right + j * depth;
    for (int64_t i = 0; i < num_rows; i += ROWS) {
      const float* rows = left + i * depth;
      float* to = c + i * ldc + j;
      if (i + ROWS > num_rows || j + kPanel > num_columns) {
        multiply_edge(smaller(ROWS, num_rows - i), smaller(kPanel, num_columns - j), depth, rows,
                      panel, to, ldc, add);
      } else if (add) {
        micro_tile<ROWS, PANEL>(depth, rows, 1, ROWS, panel, to, ldc, Added{});
      } else {
        micro_tile<ROWS, PANEL>(depth, rows, 1, ROWS, panel, to, ldc, Fresh{});
      }
    }
  }
}

constexpr GemmTiles kGemmTiles{ROWS, kPanel, pack_left, pack_right, multiply};

}  // namespace

const GemmTiles* avx2_gemm_tiles() { return &kGemmTiles; }
}  // namespace longspan
#else
namespace longspan {
const GemmTiles* avx2_gemm_tiles() { return nullptr; }
}  // namespace longspan
#endif
