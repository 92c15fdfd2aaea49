<<<<<<< HEAD:longspan/cpu/tile_products.h
// Matrix products of the tile code. The left matrix is read a number at a time and lies anywhere;
// the right one lies in panels of kPanel columns, each contiguous, so that a product reads it from
// front to back: a column of cache lines a power of two apart would fall into few sets of the
// first-level cache. Included once for each instruction set, by attention/flash/tiles_impl.h and by
// gemm_tiles_avx2.cpp.
=======
// Matrix products of the tile code. The left matrix is read one number at a time and has any
// layout. The right matrix lies in panels of kPanel columns. Each panel is contiguous, so a product
// reads it from front to back. Without panels, a column of cache lines a power of two apart would
// fall into few sets of the first-level cache. Included once for each instruction set, like
// tiles_impl.h.
>>>>>>> words-headers1:longspan/attention/flash/tile_products.h
#pragma once

#include "longspan/cpu/tile_vectors.h"

namespace longspan::tiles {
namespace {

/// Columns of a panel. A matrix's last panel has the remaining columns, a multiple of LANES.
constexpr int64_t kPanel = PANEL * LANES;

/// Stores the product.
struct Fresh {
  Vector sum(int64_t, const float*, Vector product) const { return product; }
  Fresh from_row(int64_t) const { return *this; }
};
/// Stores the sum of the product and the old value.
struct Added {
  Vector sum(int64_t, const float* there, Vector product) const { return load(there) + product; }
  Added from_row(int64_t) const { return *this; }
};
/// Stores the sum of the product and the old value times its row's factor.
struct AddedToScaled {
  const float* factors;
  Vector sum(int64_t row, const float* there, Vector product) const {
    return load(there) * splat(factors[row]) + product;
  }
  AddedToScaled from_row(int64_t row) const { return {factors + row}; }
};

/// Computes a[R x depth] times b[depth x P*LANES] into c[R x P*LANES], as `into` says. Element (i,
/// k) of a is a[i * a_row + k * a_depth].
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

/// Computes a[rows x depth] times one panel of `width` columns into c[rows x width]. The panel has
/// at most P vectors a row.
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

/// Computes a[rows x depth] times the first columns of b into c[rows x columns]. b is panels of
/// b_depth rows. `columns` is b's width, or a smaller multiple of kPanel.
template <typename Into>
inline void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row,
                     int64_t a_depth, const float* b, int64_t b_depth, float* c, int64_t ldc,
                     Into into) {
  for (int64_t j = 0; j < columns; j += kPanel)
    panel<PANEL>(smaller(kPanel, columns - j), rows, depth, a, a_row, a_depth, b + j * b_depth,
                 c + j, ldc, into);
}

/// Copies rows x columns at `stride` into a contiguous matrix, times factor.
inline void pack(const float* from, int64_t stride, int64_t rows, int64_t columns, float factor,
                 float* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += LANES)
      store(to + i * columns + j, load(from + i * stride + j) * factor);
}

/// Copies rows x columns at `stride` into panels of `depth` rows, times factor.
inline void pack_panels(const float* from, int64_t stride, int64_t rows, int64_t columns,
                        float factor, float* to, int64_t depth) {
  for (int64_t j = 0; j < columns; j += kPanel) {
    const int64_t width = smaller(kPanel, columns - j);
    pack(from + j, stride, rows, width, factor, to + j * depth);
  }
}

/// Copies rows x columns at `stride`, transposed, into panels of `columns` rows. Pads with zeros
/// past the last row up to a whole vector.
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
