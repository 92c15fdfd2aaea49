// Kernels around the gemms of grouped_gemm.cu: the first row of each group, sums over the rows of a
// group, and sums over the groups of a row.

namespace longspan::cuda {

/// Finds the first row of each group, and the group of each tile of rows.
LONGSPAN_KERNEL(group_tiles, GroupTiles, kBlockThreads) {
  const int threads = static_cast<int>(blockDim.x);
  for (int group = static_cast<int>(threadIdx.x); group <= a.num_groups; group += threads) {
    long long begin = 0, first = 0;
    for (int i = 0; i < group; ++i) {
      begin += a.counts[i];
      first += (a.counts[i] + kTileRows - 1) / kTileRows;
    }
    a.begins[group] = begin;
    const bool is_group = group < a.num_groups;
    const long long end =
        is_group ? first + (a.counts[group] + kTileRows - 1) / kTileRows : a.num_tiles;
    if (is_group) a.first_tiles[group] = first;
    for (long long tile = first; tile < end; ++tile) a.tile_groups[tile] = group;
  }
}

/// Casts the matrices of all groups. blockIdx.y: the group.
LONGSPAN_KERNEL(cast_matrices, CastMatrices, kBlockThreads) {
  const long long first =
      (static_cast<long long>(blockIdx.x) * kBlockThreads + threadIdx.x) * kBf16Vector;
  if (first >= a.size) return;
  float x[kBf16Vector];
  load_numbers(reinterpret_cast<const float*>(a.matrices[blockIdx.y]) + first, x);
  store_numbers(static_cast<bf16*>(a.cast) + blockIdx.y * a.size + first, x);
}

/// A block orders the rows of one process for one expert.
LONGSPAN_KERNEL(order_arrived, ArrivedRows, kBlockThreads) {
  const int own = static_cast<int>(blockIdx.x), rank = own / a.num_experts,
            expert = own % a.num_experts;
  long long begin = 0, sorted_begin = 0;
  for (int i = 0; i < a.num_ranks * a.num_experts; ++i) {
    const int of_rank = i / a.num_experts, of_expert = i % a.num_experts;
    const long long rows = a.arrived[i];
    if (i < own) begin += rows;
    if (of_expert < expert || (of_expert == expert && of_rank < rank)) sorted_begin += rows;
  }
  for (long long row = threadIdx.x; row < a.arrived[own]; row += blockDim.x) {
    a.order[sorted_begin + row] = begin + row;
    a.places[begin + row] = sorted_begin + row;
  }
}

/// sum[row] += the row's num_parts rows of y, weighted, in their order.
LONGSPAN_KERNEL(combine_rows, CombineRows, kBlockThreads) {
  const int vectors = a.num_columns / kBf16Vector;
  const long long item = static_cast<long long>(blockIdx.x) * kBlockThreads + threadIdx.x;
  const long long row = item / vectors;
  if (row >= a.num_rows) return;
  const int column = static_cast<int>(item % vectors) * kBf16Vector;
  float sum[kBf16Vector], y[kBf16Vector];
  float* const to = a.sum + row * a.num_columns + column;
  load_numbers(to, sum);
  for (int i = 0; i < a.num_parts; ++i) {
    const long long from = row * a.num_parts + i;
    const float weight = a.weights == nullptr ? 1.0f : a.weights[from];
    load_numbers(static_cast<const bf16*>(a.y) + from * a.num_columns + column, y);
#pragma unroll
    for (int v = 0; v < kBf16Vector; ++v) sum[v] += weight * y[v];
  }
  store_numbers(to, sum);
}

/// dots[to[row]] (+)= a row of x times a row of y, or times a vector of its group. One warp a row.
LONGSPAN_KERNEL(grouped_dots, GroupedDots, kBlockThreads) {
  const int tile = static_cast<int>(blockIdx.x);
  const int group = static_cast<int>(a.sorted.tile_groups[tile]);
  if (group >= a.sorted.num_groups) return;
  const long long begin = a.sorted.begins[group] + (tile - a.sorted.first_tiles[group]) * kTileRows;
  const long long end = min(a.sorted.begins[group + 1], begin + kTileRows);
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = kBlockThreads / 32;
  const void* const vector =
      a.vectors == nullptr ? nullptr : reinterpret_cast<const void*>(a.vectors[group]);
  // Rows past the end take part in the warp's sums.
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kTileRows; i += warps) {
    const long long row = begin + i;
    float sum = 0;
    if (row < end) {
      const long long from = a.from == nullptr ? row : a.from[row];
      for (int n = lane; n < a.num_columns; n += 32) {
        const float x = number_of(a.x, true, from * a.num_columns + n);
        sum += x * (vector != nullptr ? number_of(vector, a.vectors_are_bf16 != 0, n)
                                      : number_of(a.y, true, row * a.num_columns + n));
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane != 0 || row >= end) continue;
    float* const to = a.dots + (a.to == nullptr ? row : a.to[row]);
    *to = a.adds != 0 ? *to + sum : sum;
  }
}

/// gradients of a group += the weighted sum of its rows. threadIdx.x: the column, threadIdx.y: the
/// thread's part of the rows.
LONGSPAN_KERNEL(grouped_sums, GroupedSums, kSumColumns* kSumParts) {
  LONGSPAN_SHARED(float, parts, [kSumParts][kSumColumns]);
  const int group = static_cast<int>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.x * kSumColumns + threadIdx.x);
  const long long begin = a.sorted.begins[group], end = a.sorted.begins[group + 1];
  if (begin >= end) return;
  float sum = 0;
  if (column < a.x.num_columns) {
    for (long long row = begin + threadIdx.y; row < end; row += kSumParts) {
      const long long from = a.x.from == nullptr ? row : a.x.from[row];
      const float weight = a.weights == nullptr ? 1.0f : a.weights[row];
      sum += weight * number_of(a.x.x, true, from * a.x.num_columns + column);
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= a.x.num_columns) return;
  for (int part = 1; part < kSumParts; ++part) sum += parts[part][threadIdx.x];
  if (a.gradients_are_bf16 != 0) {
    bf16* const to = reinterpret_cast<bf16*>(a.gradients[group]) + column;
    to->bits = static_cast<unsigned short>(bits_of_bf16(number_of(to, true, 0) + sum));
  } else {
    reinterpret_cast<float*>(a.gradients[group])[column] += sum;
  }
}

}  // namespace longspan::cuda
