// RMSNorm (arXiv 1910.07467). The threads of a row hold it in registers, so memory is read once.
// threadIdx.x: place in the row, threadIdx.y: row of the block.

namespace longspan::cuda {

enum class Norm { kRms, kScale, kBoth };

/// y = residual + weight * h * rstd, with rstd = 1 / sqrt(mean(h^2) + eps) computed or given.
template <Norm kNorm, typename S, typename Y, int V, int K>
__device__ __forceinline__ void norm_forward(const NormForward& a) {
  LONGSPAN_SHARED(float, parts, [kMostWarps]);
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool mine = row < a.num_rows;
  const S* h = static_cast<const S*>(a.h) + row * a.size;
  const int first = static_cast<int>(threadIdx.x) * V, step = static_cast<int>(blockDim.x) * V;
  Packed<S, V> held[K] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = first + k * step;
    if (mine && i < a.size) held[k] = load<S, V>(h + i);
  }
  float rstd = 0;
  if constexpr (kNorm == Norm::kScale) {
    if (mine) rstd = a.rstd[row];
  } else {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float x[V];
      unpack(held[k], x);
#pragma unroll
      for (int v = 0; v < V; ++v) sum += x[v] * x[v];
    }
    const float mean = row_sum(sum, parts) / static_cast<float>(a.size);
    rstd = 1.0f / sqrtf(mean + a.eps);
    if (mine && threadIdx.x == 0) a.rstd[row] = rstd;
  }
  if constexpr (kNorm != Norm::kRms) {
    if (!mine) return;
    Y* y = static_cast<Y*>(a.y) + row * a.size;
    const Y* residual = static_cast<const Y*>(a.residual);
    if (residual != nullptr) residual += row * a.size;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = first + k * step;
      if (i >= a.size) break;
      float x[V], w[V];
      unpack(held[k], x);
      load_weight(a.weight, a.weight_is_bf16, i, w);
#pragma unroll
      for (int v = 0; v < V; ++v) x[v] = w[v] * (x[v] * rstd);
      if (residual != nullptr) {
        float r[V];
        load_numbers(residual + i, r);
#pragma unroll
        for (int v = 0; v < V; ++v) x[v] += r[v];
      }
      store_numbers(y + i, x);
    }
  }
}

// norm_<what>_<dtype of h><dtype of y>_v<numbers of a memory access>
#define LONGSPAN_NORM(name, what, S, Y, V)                     \
  LONGSPAN_KERNEL(name, NormForward, kMostThreads<V>) {        \
    norm_forward<Norm::what, S, Y, V, kVectorsOfThread<V>>(a); \
  }
#define LONGSPAN_NORMS(types, S, Y, V)                      \
  LONGSPAN_NORM(norm_scale_##types##_v##V, kScale, S, Y, V) \
  LONGSPAN_NORM(norm_both_##types##_v##V, kBoth, S, Y, V)

LONGSPAN_NORM(norm_rms_f_v4, kRms, float, float, 4)
LONGSPAN_NORM(norm_rms_f_v1, kRms, float, float, 1)
LONGSPAN_NORM(norm_rms_b_v8, kRms, bf16, bf16, 8)
LONGSPAN_NORM(norm_rms_b_v1, kRms, bf16, bf16, 1)
LONGSPAN_NORMS(ff, float, float, 4)
LONGSPAN_NORMS(ff, float, float, 1)
LONGSPAN_NORMS(fb, float, bf16, 4)
LONGSPAN_NORMS(fb, float, bf16, 1)
LONGSPAN_NORMS(bb, bf16, bf16, 8)
LONGSPAN_NORMS(bb, bf16, bf16, 1)

}  // namespace longspan::cuda
