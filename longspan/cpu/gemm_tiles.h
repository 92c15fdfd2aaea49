// Interface between the fp32 gemm driver (kernels/tiled_gemm.h: torch, threads) and its tile code.
// The file is plain C++, like attention/flash/flash_tasks.h. No torch.
#pragma once

#include <stdint.h>

namespace longspan {

/// Tile code for c[rows, columns] = or += a[rows, depth] b[depth, columns] in fp32. Both matrices
/// are packed first: a in panels of `rows` rows, b in panels of `columns` columns, each in the
/// order in which the product reads it. Panels at the edges are filled up with zeros.
struct GemmTiles {
  int64_t rows, columns;  // of a panel
  /// Packs scale * a. Element (i, k) of a is at a[i * row_stride + k * depth_stride].
  void (*pack_left)(const float* a, int64_t row_stride, int64_t depth_stride, int64_t num_rows,
                    int64_t depth, float scale, float* to);
  /// Packs b. Element (k, j) of b is at b[k * depth_stride + j * column_stride].
  void (*pack_right)(const float* b, int64_t depth_stride, int64_t column_stride, int64_t depth,
                     int64_t num_columns, float* to);
  /// c[num_rows, num_columns], with ldc floats between rows, = or (add) += left right.
  void (*multiply)(int64_t num_rows, int64_t num_columns, int64_t depth, const float* left,
                   const float* right, float* c, int64_t ldc, bool add);
};

/// Null if the program was built without this tile code. The processor must have AVX2 and FMA.
const GemmTiles* avx2_gemm_tiles();

}  // namespace longspan
