// The gradient of RMSNorm (arXiv 1910.07467) and of its weight. The weight's gradient is summed in
// two steps: over the rows of a block, and over the blocks. threadIdx.x: place in the row,
// threadIdx.y: row of the block.

namespace longspan::cuda {

/// y = w h r with r = (mean h^2 + eps)^(-1/2): dh = residual + r (w dy) - h r^3 mean(w dy h). Block
/// b takes rows b, b + blocks, ... With kSums it writes its sum of dy h r, so sums depend only on
/// the numbers of rows and blocks.
template <typename S, typename Y, int V, int K, bool kSums>
__device__ __forceinline__ void norm_backward(const NormBackward& a) {
  LONGSPAN_SHARED(float, parts, [2][kMostWarps]);
  LONGSPAN_SHARED_FLOATS(sums);
  const int first = static_cast<int>(threadIdx.x) * V, step = static_cast<int>(blockDim.x) * V;
  float dweight[kSums ? K : 1][V] = {};
  int turn = 0;
  for (long long begin = static_cast<long long>(blockIdx.x) * blockDim.y; begin < a.num_rows;
       begin += static_cast<long long>(gridDim.x) * blockDim.y) {
    const long long row = begin + threadIdx.y;
    const bool mine = row < a.num_rows;
    const long long offset = row * a.size;
    const S* h = static_cast<const S*>(a.h) + offset;
    const Y* dy = static_cast<const Y*>(a.dy) + offset;
    const S* residual = static_cast<const S*>(a.residual);
    if (residual != nullptr) residual += offset;
    Packed<S, V> held_h[K] = {}, held_residual[K] = {};
    Packed<Y, V> held_dy[K] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = first + k * step;
      if (mine && i < a.size) {
        held_dy[k] = load<Y, V>(dy + i);
        held_h[k] = load<S, V>(h + i);
        if (residual != nullptr) held_residual[k] = load<S, V>(residual + i);
      }
    }
    const float rstd = mine ? a.rstd[row] : 0.0f;
    float dot = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = first + k * step;
      if (i >= a.size) break;
      float x[V], g[V], w[V];
      unpack(held_h[k], x);
      unpack(held_dy[k], g);
      load_weight(a.weight, a.weight_is_bf16, i, w);
#pragma unroll
      for (int v = 0; v < V; ++v) dot += g[v] * w[v] * x[v];
    }
    dot = row_sum(dot, parts[turn]);
    turn ^= 1;
    const float factor = rstd * rstd * rstd * dot / static_cast<float>(a.size);
    S* dh = static_cast<S*>(a.dh) + offset;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = first + k * step;
      if (!mine || i >= a.size) break;
      float x[V], g[V], w[V], r[V];
      unpack(held_h[k], x);
      unpack(held_dy[k], g);
      unpack(held_residual[k], r);
      load_weight(a.weight, a.weight_is_bf16, i, w);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if constexpr (kSums) dweight[k][v] += g[v] * (x[v] * rstd);
        x[v] = r[v] + (rstd * g[v] * w[v] - x[v] * factor);
      }
      store_numbers(dh + i, x);
    }
  }
  if constexpr (kSums) {
    float* total = a.dweight + static_cast<long long>(blockIdx.x) * a.size;
    const bool alone = blockDim.y == 1;
    float* own = alone ? total : sums + static_cast<int>(threadIdx.y) * a.size;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = first + k * step;
      if (i < a.size) store_numbers(own + i, dweight[k]);
    }
    if (alone) return;
    sum_of_rows(sums, a.size, total);
  }
}

LONGSPAN_KERNEL(sum_weight_gradients, WeightSum, kSumColumns * kSumParts) {
  LONGSPAN_SHARED(float, sums, [kSumParts][kSumColumns]);
  const int i = static_cast<int>(blockIdx.x) * kSumColumns + static_cast<int>(threadIdx.x);
  float sum = 0;
  if (i < a.size) {
#pragma unroll 4
    for (int part = static_cast<int>(threadIdx.y); part < a.num_parts; part += kSumParts) {
      sum += a.parts[static_cast<long long>(part) * a.size + i];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || i >= a.size) return;
  for (int part = 1; part < kSumParts; ++part) sum += sums[part][threadIdx.x];
  a.dweight[i] += sum;
}

// norm_backward_<sums, where the weight trains>_<dtype of h><dtype of dy>_v<numbers of an access>
#define LONGSPAN_NORM_BACKWARD(name, S, Y, V, sums)       \
  LONGSPAN_KERNEL(name, NormBackward, kMostThreads<V>) {  \
    norm_backward<S, Y, V, kVectorsOfThread<V>, sums>(a); \
  }
#define LONGSPAN_NORM_BACKWARDS(types, S, Y, V)                        \
  LONGSPAN_NORM_BACKWARD(norm_backward_##types##_v##V, S, Y, V, false) \
  LONGSPAN_NORM_BACKWARD(norm_backward_sums_##types##_v##V, S, Y, V, true)

LONGSPAN_NORM_BACKWARDS(ff, float, float, 4)
LONGSPAN_NORM_BACKWARDS(ff, float, float, 1)
LONGSPAN_NORM_BACKWARDS(fb, float, bf16, 4)
LONGSPAN_NORM_BACKWARDS(fb, float, bf16, 1)
LONGSPAN_NORM_BACKWARDS(bb, bf16, bf16, 8)
LONGSPAN_NORM_BACKWARDS(bb, bf16, bf16, 1)

}  // namespace longspan::cuda
