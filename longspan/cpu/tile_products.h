// Matrix products of the tile code. The left matrix is read one number at a time and may have any
// strides. The right matrix lies in panels of kPanel columns, each contiguous, so that a product
// reads a panel from front to back. Without panels, rows would often be a power of two bytes apart,
// and their cache lines would share few sets of the first-level cache. This file is included once
// for each instruction set, by attention/flash/tiles_impl.h and by gemm_tiles_avx2.cpp.
#pragma once

#include "longspan/cpu/tile_vectors.h"

namespace longspan::tiles {
namespace {

/// Columns of a panel. The last panel of a matrix has the remaining columns, a multiple of LANES.
constexpr int64_t kPanel = PANEL * LANES;

/// Writes the product.
struct Fresh {
  Vector sum(int64_t, const float*, Vector product) const { return product; }
  Fresh from_row(int64_t) const { return *this; }
};
/// Adds the product to the old value.
struct Added {
  Vector sum(int64_t, const float* there, Vector product) const { return load(there) + product; }
  Added from_row(int64_t) const { return *this; }
};
/// Adds the product to the old value times a factor of the row.
struct AddedToScaled {
  const float* factors;
  Vector sum(int64_t row, const float* there, Vector product) const {
    return load(there) * splat(factors[row]) + product;
  }
  AddedToScaled from_row(int64_t row) const { return {factors + row}; }
};

/// c[R x P*LANES] = or += a (R x depth, element (i, k) at a[i * a_row + k * a_depth]) times
/// b[depth x P*LANES].
template <int R, int P, typename Into>
inline void micro_tile(int64_t depth, const float* a, int64_t a_row, int64_t a_depth,
                       const float* b, float* c, int64_t ldc, Into into) {
  Vector sums[R][P];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < P; ++j) sums[i][j] = Vector{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector row[P];
#pragma GCC unroll 4
    for (int j = 0; j < P; ++j) row[j] = load(b + (k * P + j) * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vector x = splat(a[i * a_row + k * a_depth]);
#pragma GCC unroll 4
      for (int j = 0; j < P; ++j) sums[i][j] += x * row[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < P; ++j) {
      float* to = c + i * ldc + j * LANES;
      store(to, into.sum(i, to, sums[i][j]));
    }
}

/// c[rows x width] = or += a[rows x depth] times a panel of `width` columns, P vectors or fewer.
template <int P, typename Into>
inline void panel(int64_t width, int64_t rows, int64_t depth, const float* a, int64_t a_row,
                  int64_t a_depth, const float* b, float* c, int64_t ldc, Into into) {
  if constexpr (P > 1) {
    if (width < P * LANES)
      return panel<P - 1>(width, rows, depth, a, a_row, a_depth, b, c, ldc, into);
  }
  int64_t i = 0;
  for (; i + ROWS <= rows; i += ROWS)
    micro_tile<ROWS, P>(depth, a + i * a_row, a_row, a_depth, b, c + i * ldc, ldc,
                        into.from_row(i));
  for (; i < rows; ++i)
    micro_tile<1, P>(depth, a + i * a_row, a_row, a_depth, b, c + i * ldc, ldc, into.from_row(i));
}

/// c[rows x columns] = or += a[rows x depth] times the first `columns` columns of b. b lies in
/// panels of b_depth rows. `columns` is b's width, or a smaller multiple of kPanel.
template <typename Into>
inline void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row,
                     int64_t a_depth, const float* b, int64_t b_depth, float* c, int64_t ldc,
                     Into into) {
  for (int64_t j = 0; j < columns; j += kPanel)
    panel<PANEL>(smaller(kPanel, columns - j), rows, depth, a, a_row, a_depth, b + j * b_depth,
                 c + j, ldc, into);
}

/// Copies a matrix [rows x columns], with `stride` numbers from row to row, to contiguous memory.
/// Multiplies by `factor`.
inline void pack(const float* from, int64_t stride, int64_t rows, int64_t columns, float factor,
                 float* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += LANES)
      store(to + i * columns + j, load(from + i * stride + j) * factor);
}

/// Copies the same kind of matrix to panels of `depth` rows. Multiplies by `factor`.
inline void pack_panels(const float* from, int64_t stride, int64_t rows, int64_t columns,
                        float factor, float* to, int64_t depth) {
  for (int64_t j = 0; j < columns; j += kPanel) {
    const int64_t width = smaller(kPanel, columns - j);
    pack(from + j, stride, rows, width, factor, to + j * depth);
  }
}

/// Copies the transpose of the same kind of matrix to panels of `columns` rows. Pads the columns of
/// the result with zeros to whole vectors.
inline void pack_transposed(const float* from, int64_t stride, int64_t rows, int64_t columns,
                            float* to) {
  const int64_t padded = round_up(rows, LANES);
  for (int64_t i = 0; i < padded; i += LANES) {
    const int64_t first = i / kPanel * kPanel, width = smaller(kPanel, padded - first);
    for (int64_t j = 0; j < columns; j += LANES) {
      Vector square[LANES];
      if (i + LANES <= rows) {
#pragma GCC unroll 16
        for (int64_t r = 0; r < LANES; ++r) square[r] = load(from + (i + r) * stride + j);
      } else {
        for (int64_t r = 0; r < LANES; ++r)
          square[r] = i + r < rows ? load(from + (i + r) * stride + j) : Vector{};
      }
      transpose(square);
#pragma GCC unroll 16
      for (int64_t r = 0; r < LANES; ++r)
        store(to + first * columns + (j + r) * width + (i - first), square[r]);
    }
  }
}

}  // namespace
}  // namespace longspan::tiles
