// Gemms of rows sorted by group, each group with its own matrices (like MegaBlocks, arXiv
// 2211.15841): the rows that a router sends to each expert. The kernels read the number of rows of
// each group, so the host does not wait for it. Numbers are bf16, sums are fp32. One thread sums
// each number of a result in a fixed order, so results are bit-reproducible.
//
// A block computes one tile of the result from tiles of the two factors (grouped_tiles.cuh). Shared
// memory holds the tiles of several steps, its stages: while the tensor cores multiply one, copies
// of the others are on their way.

namespace longspan::cuda {

/// Each warp computes 64 x 64 numbers: 4 x 8 times the tile of one instruction.
constexpr int kWarpRows = 64, kWarpColumns = 64, kWarpsOfRows = kTileRows / kWarpRows;
constexpr int kRowParts = kWarpRows / 16, kColumnParts = kWarpColumns / 8;
/// Tiles of rows that take turns with the same tile of columns.
constexpr int kRowTilesAtOnce = 8;
static_assert(kGemmThreads / 32 * kWarpRows * kWarpColumns == kTileRows * kTileColumns);

/// sum += a b for the warp's rows and 16 of its columns, part `part`, at a depth of 16.
__device__ __forceinline__ void multiply(float (&sum)[kRowParts][kColumnParts][4], int part,
                                         const unsigned (&a)[kRowParts][4],
                                         const unsigned (&b)[4]) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float (&c)[4] = sum[i][2 * part + j];
      // Volatile, since all lanes of a warp must execute it together.
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
          "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[2 * j]),
            "r"(b[2 * j + 1]));
    }
  }
#else
  multiply_of_warp(a, b, [&](int i, int j) { return sum[i][2 * part + j]; });
#endif
}

/// The first row and column of this thread's warp in a tile.
__device__ __forceinline__ int first_row_of_warp() {
  return static_cast<int>(threadIdx.x) / 32 % kWarpsOfRows * kWarpRows;
}
__device__ __forceinline__ int first_column_of_warp() {
  return static_cast<int>(threadIdx.x) / 32 / kWarpsOfRows * kWarpColumns;
}

/// Adds the products of one step's tiles to this thread's sums.
template <typename A, typename B>
__device__ __forceinline__ void add_step(const A& a, const B& b, const char* stage,
                                         float (&sum)[kRowParts][kColumnParts][4]) {
#pragma unroll
  for (int depth = 0; depth < kTileDepth / 16; ++depth) {
    // The columns' next words are on their way while the tensor cores multiply.
    unsigned of_a[kRowParts][4], of_b[2][4];
    b.load(stage + A::kTileBytes, depth, 0, of_b[0]);
#pragma unroll
    for (int i = 0; i < kRowParts; ++i) a.load(stage, depth, i, of_a[i]);
#pragma unroll
    for (int part = 0; part < kColumnParts / 2; ++part) {
      if (part + 1 < kColumnParts / 2) {
        b.load(stage + A::kTileBytes, depth, part + 1, of_b[(part + 1) % 2]);
      }
      multiply(sum, part, of_a, of_b[part % 2]);
    }
  }
}

/// Returns this thread's part of the tile's product. `shared`: num_stages stages.
template <typename A, typename B>
__device__ __forceinline__ void multiply_tiles(A& a, B& b, int num_steps, int num_stages,
                                               char* shared,
                                               float (&sum)[kRowParts][kColumnParts][4]) {
  constexpr int kStageBytes = A::kTileBytes + B::kTileBytes;
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnParts; ++j) {
#pragma unroll
      for (int n = 0; n < 4; ++n) sum[i][j][n] = 0;
    }
  }
  const auto start = [&](char* stage) {
    a.start(stage);
    b.start(stage + A::kTileBytes);
  };
  // Each step ends a group of copies, an empty one after the last step's. A step's copies have thus
  // arrived when all but the newest num_stages - 2 groups have.
  for (int i = 0; i + 1 < num_stages; ++i) {
    if (i < num_steps) start(shared + i * kStageBytes);
    end_copies();
  }
  int now = 0, free = (num_stages - 1) * kStageBytes;
  for (int step = 0; step < num_steps; ++step) {
    if (num_stages == kMostStages) {
      wait_for_copies<kMostStages - 2>();
    } else {
      wait_for_copies<kMostStages - 3>();
    }
    // The copies of all threads have arrived, and no thread reads the previous step's stage.
    __syncthreads();
    if (step + num_stages - 1 < num_steps) start(shared + free);
    end_copies();
    add_step(a, b, shared + now, sum);
    a.end_step();
    b.end_step();
    free = now;
    now = now + kStageBytes == num_stages * kStageBytes ? 0 : now + kStageBytes;
  }
}

/// Calls use(row, column, x, y) for each two neighbouring numbers of this thread.
template <typename Use>
__device__ __forceinline__ void for_numbers(const float (&sum)[kRowParts][kColumnParts][4],
                                            Use&& use) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = first_row_of_warp() + lane / 4, column = first_column_of_warp() + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnParts; ++j) {
      use(row + 16 * i, column + 8 * j, sum[i][j][0], sum[i][j][1]);
      use(row + 16 * i + 8, column + 8 * j, sum[i][j][2], sum[i][j][3]);
    }
  }
}

/// Returns x, which the compiler takes for another number.
__device__ __forceinline__ int hidden(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// A tile's place in the result, in tiles.
struct TilePlace {
  int row, column;
};

/// Blocks that run at the same time read few tiles of both factors, so these stay in the L2 cache:
/// kRowTilesAtOnce tiles of rows take turns with the same tile of columns (of a matrix, if they are
/// of one group), then with the next.
__device__ __forceinline__ TilePlace place_of(int block, int num_rows, int num_columns) {
  const int at_once = kRowTilesAtOnce * num_columns, first = block / at_once * kRowTilesAtOnce;
  const int rows = min(num_rows - first, kRowTilesAtOnce), inside = block % at_once;
  return {first + inside % rows, inside / rows};
}

__device__ __forceinline__ int tiles_across(int num_columns) {
  return (num_columns + kTileColumns - 1) / kTileColumns;
}

template <typename Matrix>
__device__ __forceinline__ void grouped_rows(const GroupedRows& a) {
  LONGSPAN_SHARED_FLOATS(row_stages);
  const int across = tiles_across(a.num_columns);
  const TilePlace place =
      place_of(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x) / across, across);
  const int group = static_cast<int>(a.sorted.tile_groups[place.row]);
  if (group >= a.sorted.num_groups) return;
  const int begin = static_cast<int>(a.sorted.begins[group] +
                                     (place.row - a.sorted.first_tiles[group]) * kTileRows);
  const int end = static_cast<int>(a.sorted.begins[group + 1]);
  int num_steps = 0;
  for (int i = 0; i < a.num_factors; ++i) {
    num_steps += (a.factors[i].depth + kTileDepth - 1) / kTileDepth;
  }
  float sum[kRowParts][kColumnParts][4];
  {
    RowTile rows(a, begin, end, first_row_of_warp());
    Matrix matrix(a, group, place.column * kTileColumns, first_column_of_warp());
    multiply_tiles(rows, matrix, num_steps, a.num_stages, reinterpret_cast<char*>(row_stages), sum);
  }
  // The place of the tile is read again: kept, it takes registers that the loop has not.
  const int own_across = tiles_across(hidden(a.num_columns));
  const TilePlace own = place_of(hidden(static_cast<int>(blockIdx.x)),
                                 static_cast<int>(gridDim.x) / own_across, own_across);
  const int own_group = static_cast<int>(a.sorted.tile_groups[own.row]);
  const int first_row = static_cast<int>(a.sorted.begins[own_group] +
                                         (own.row - a.sorted.first_tiles[own_group]) * kTileRows);
  const int end_row = static_cast<int>(a.sorted.begins[own_group + 1]);
  const int first_column = own.column * kTileColumns;
  const void* const bias =
      a.biases == nullptr ? nullptr : reinterpret_cast<const void*>(a.biases[own_group]);
  const bool bias_is_bf16 = a.biases_are_bf16 != 0;
  for_numbers(sum, [&](int row, int column, float x, float y) {
    const int at = first_row + row, n = first_column + column;
    if (at >= end_row || n >= a.num_columns) return;
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

// _b: all matrices are bf16, _f: some are fp32. A thread has few enough registers that two blocks
// run at once.
LONGSPAN_DENSE_KERNEL(grouped_rows_b, GroupedRows, kGemmThreads, 2) {
  grouped_rows<MatrixTile<FromRows, false>>(a);
}
LONGSPAN_DENSE_KERNEL(grouped_rows_f, GroupedRows, kGemmThreads, 2) {
  grouped_rows<MatrixTile<FromRows, true>>(a);
}
LONGSPAN_DENSE_KERNEL(grouped_rows_transposed_b, GroupedRows, kGemmThreads, 2) {
  grouped_rows<MatrixTile<FromColumns, false>>(a);
}
LONGSPAN_DENSE_KERNEL(grouped_rows_transposed_f, GroupedRows, kGemmThreads, 2) {
  grouped_rows<MatrixTile<FromColumns, true>>(a);
}

LONGSPAN_DENSE_KERNEL(grouped_matrices, GroupedMatrices, kGemmThreads, 2) {
  LONGSPAN_SHARED_FLOATS(stages);
  const int group = static_cast<int>(blockIdx.y);
  const int begin = static_cast<int>(a.sorted.begins[group]),
            end = static_cast<int>(a.sorted.begins[group + 1]);
  if (begin >= end) return;
  const int across = tiles_across(a.b.num_columns);
  const TilePlace place =
      place_of(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x) / across, across);
  float sum[kRowParts][kColumnParts][4];
  {
    RowsAsDepth<true> of_a(a.a, begin, end, place.row * kTileRows, first_row_of_warp());
    RowsAsDepth<false> of_b(a.b, begin, end, place.column * kTileColumns, first_column_of_warp());
    multiply_tiles(of_a, of_b, (end - begin + kTileDepth - 1) / kTileDepth, a.num_stages,
                   reinterpret_cast<char*>(stages), sum);
  }
  const int own_group = hidden(static_cast<int>(blockIdx.y));
  const int own_across = tiles_across(hidden(a.b.num_columns));
  const TilePlace own = place_of(hidden(static_cast<int>(blockIdx.x)),
                                 static_cast<int>(gridDim.x) / own_across, own_across);
  const int row_of_tile = own.row * kTileRows, column_of_tile = own.column * kTileColumns;
  char* const gradient = reinterpret_cast<char*>(a.gradients[own_group]);
  const bool is_bf16 = a.gradients_are_bf16 != 0;
  for_numbers(sum, [&](int row, int column, float x, float y) {
    const int m = row_of_tile + row, n = column_of_tile + column;
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
