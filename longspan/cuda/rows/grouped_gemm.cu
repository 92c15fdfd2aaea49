// Gemms of rows sorted by group, each group with its own matrices (like MegaBlocks, arXiv
// 2211.15841): the rows that a router sends to each expert. The kernels read the number of rows of
// each group, so the host does not wait for it. Numbers are bf16, sums are fp32. One thread sums
// each number of a result in a fixed order, so results are bit-reproducible.
//
// A block computes one tile of the result from tiles of the two factors (grouped_tiles.cuh). While
// the tensor cores multiply the current tiles, the next ones are loaded from memory into registers.
// From there they go to one of two shared buffers.

namespace longspan::cuda {

/// Each warp computes 64 x 32 numbers: 4 x 4 times the tile of one instruction.
constexpr int kWarpRows = 64, kWarpColumns = 32, kWarpsOfRows = kTileRows / kWarpRows;
constexpr int kRowParts = kWarpRows / 16, kColumnParts = kWarpColumns / 8;
static_assert(kGemmThreads / 32 * kWarpRows * kWarpColumns == kTileRows * kTileColumns);

/// sum += a b for 16 rows and a depth of 16, for each 8 columns.
__device__ __forceinline__ void multiply(float (&sum)[kColumnParts][4], const unsigned (&a)[4],
                                         const unsigned (&b)[kColumnParts][2]) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int j = 0; j < kColumnParts; ++j) {
    float (&c)[4] = sum[j];
    // Volatile, since all lanes of a warp must execute it together.
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[j][0]), "r"(b[j][1]));
  }
#else
  multiply_of_warp(&sum[0][0], a, &b[0][0], kColumnParts);
#endif
}

/// Adds the products of one step's tiles to this thread's sums.
template <typename A, typename B>
__device__ __forceinline__ void add_step(const unsigned* tile_a, const unsigned* tile_b,
                                         float (&sum)[kRowParts][kColumnParts][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp % kWarpsOfRows * kWarpRows + lane / 4;
  const int column = warp / kWarpsOfRows * kWarpColumns + lane / 4;
#pragma unroll
  for (int vector = 0; vector < kDepthPairs / 4; vector += 2) {
    unsigned a[4], b[kColumnParts][2];
#pragma unroll
    for (int i = 0; i < kColumnParts; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        b[i][j] = B::Layout::word(tile_b, column, 8 * i, vector + j, lane % 4);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowParts; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[j] = A::Layout::word(tile_a, row, 16 * i + 8 * (j % 2), vector + j / 2, lane % 4);
      }
      multiply(sum[i], a, b);
    }
  }
}

/// Returns this thread's part of the tile's product.
template <typename A, typename B>
__device__ __forceinline__ void multiply_tiles(A& a, B& b, int num_steps, unsigned* shared,
                                               float (&sum)[kRowParts][kColumnParts][4]) {
  constexpr int kOfA = A::Layout::kWords, kOfBoth = kOfA + B::Layout::kWords;
  static_assert(2 * kOfBoth * 4 <= kGemmSharedBytes);
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnParts; ++j) {
#pragma unroll
      for (int n = 0; n < 4; ++n) sum[i][j][n] = 0;
    }
  }
  a.fetch();
  b.fetch();
  a.put(shared);
  b.put(shared + kOfA);
  __syncthreads();
  for (int step = 0; step < num_steps; ++step) {
    const unsigned* const now = shared + step % 2 * kOfBoth;
    const bool is_more = step + 1 < num_steps;
    if (is_more) {
      a.fetch();
      b.fetch();
    }
    add_step<A, B>(now, now + kOfA, sum);
    if (!is_more) break;
    unsigned* const next = shared + (step + 1) % 2 * kOfBoth;
    a.put(next);
    b.put(next + kOfA);
    __syncthreads();
  }
}

/// Calls use(row, column, x, y) for each two neighbouring numbers of this thread.
template <typename Use>
__device__ __forceinline__ void for_numbers(const float (&sum)[kRowParts][kColumnParts][4],
                                            Use&& use) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp % kWarpsOfRows * kWarpRows + lane / 4;
  const int column = warp / kWarpsOfRows * kWarpColumns + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnParts; ++j) {
      use(row + 16 * i, column + 8 * j, sum[i][j][0], sum[i][j][1]);
      use(row + 16 * i + 8, column + 8 * j, sum[i][j][2], sum[i][j][3]);
    }
  }
}

template <typename Matrix>
__device__ __forceinline__ void grouped_rows(const GroupedRows& a) {
  LONGSPAN_SHARED_FLOATS(row_buffers);
  const int tiles_across = (a.num_columns + kTileColumns - 1) / kTileColumns;
  const int tile = static_cast<int>(blockIdx.x) / tiles_across;
  const int group = static_cast<int>(a.sorted.tile_groups[tile]);
  if (group >= a.sorted.num_groups) return;
  const int begin =
      static_cast<int>(a.sorted.begins[group] + (tile - a.sorted.first_tiles[group]) * kTileRows);
  const int end = static_cast<int>(a.sorted.begins[group + 1]);
  const int first = static_cast<int>(blockIdx.x) % tiles_across * kTileColumns;
  int num_steps = 0;
  for (int i = 0; i < a.num_factors; ++i) {
    num_steps += (a.factors[i].depth + kTileDepth - 1) / kTileDepth;
  }
  float sum[kRowParts][kColumnParts][4];
  {
    RowTile rows(a, begin, end);
    Matrix matrix(a, group, first);
    multiply_tiles(rows, matrix, num_steps, reinterpret_cast<unsigned*>(row_buffers), sum);
  }
  const void* const bias =
      a.biases == nullptr ? nullptr : reinterpret_cast<const void*>(a.biases[group]);
  const bool bias_is_bf16 = a.biases_are_bf16 != 0;
  for_numbers(sum, [&](int row, int column, float x, float y) {
    const int at = begin + row, n = first + column;
    if (at >= end || n >= a.num_columns) return;
    x *= a.scale;
    y *= a.scale;
    if (bias != nullptr) {
      x += number_of(bias, bias_is_bf16, n);
      y += number_of(bias, bias_is_bf16, n + 1);
    }
    const long long to = a.to == nullptr ? at : a.to[at];
    *reinterpret_cast<unsigned*>(static_cast<char*>(a.y) + (to * a.num_columns + n) * 2) =
        two_bf16(x, y);
  });
}

// _b: all matrices are bf16, _f: some are fp32. The bf16 kernels use few registers, so that two
// blocks run at once.
LONGSPAN_DENSE_KERNEL(grouped_rows_b, GroupedRows, kGemmThreads, 2) {
  grouped_rows<MatrixRows<false>>(a);
}
LONGSPAN_KERNEL(grouped_rows_f, GroupedRows, kGemmThreads) { grouped_rows<MatrixRows<true>>(a); }
LONGSPAN_DENSE_KERNEL(grouped_rows_transposed_b, GroupedRows, kGemmThreads, 2) {
  grouped_rows<MatrixColumns<false>>(a);
}
LONGSPAN_KERNEL(grouped_rows_transposed_f, GroupedRows, kGemmThreads) {
  grouped_rows<MatrixColumns<true>>(a);
}

LONGSPAN_DENSE_KERNEL(grouped_matrices, GroupedMatrices, kGemmThreads, 2) {
  LONGSPAN_SHARED_FLOATS(buffers);
  const int group = static_cast<int>(blockIdx.y);
  const int begin = static_cast<int>(a.sorted.begins[group]),
            end = static_cast<int>(a.sorted.begins[group + 1]);
  if (begin >= end) return;
  const int tiles_across = (a.b.num_columns + kTileColumns - 1) / kTileColumns;
  const int first_row = static_cast<int>(blockIdx.x) / tiles_across * kTileRows;
  const int first_column = static_cast<int>(blockIdx.x) % tiles_across * kTileColumns;
  float sum[kRowParts][kColumnParts][4];
  {
    RowsAsDepth of_a(a.a, begin, end, first_row), of_b(a.b, begin, end, first_column);
    multiply_tiles(of_a, of_b, (end - begin + kTileDepth - 1) / kTileDepth,
                   reinterpret_cast<unsigned*>(buffers), sum);
  }
  char* const gradient = reinterpret_cast<char*>(a.gradients[group]);
  const bool is_bf16 = a.gradients_are_bf16 != 0;
  for_numbers(sum, [&](int row, int column, float x, float y) {
    const int m = first_row + row, n = first_column + column;
    if (m >= a.a.num_columns || n >= a.b.num_columns) return;
    const long long at = static_cast<long long>(m) * a.b.num_columns + n;
    if (is_bf16) {
      bf16* const to = reinterpret_cast<bf16*>(gradient) + at;
      const float two[] = {x, y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to[i].bits = static_cast<unsigned short>(bits_of_bf16(number_of(to, true, i) + two[i]));
      }
    } else {
      float* const to = reinterpret_cast<float*>(gradient) + at;
      to[0] += x;
      to[1] += y;
    }
  });
}

}  // namespace longspan::cuda
