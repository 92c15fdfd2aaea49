// The head's softmax over a vocabulary. Logits are fp32. Sums and log-sum-exps are fp64, since a
// loss is a small difference of large numbers.

namespace longspan::cuda {

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

/// Returns the sum over all threads of a block, a multiple of 32, to each of them.
__device__ __forceinline__ double block_sum(double x, double* parts) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x) / 32; ++i) sum += parts[i];
  return sum;
}

__device__ __forceinline__ float block_max(float x, float* parts) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float largest = parts[0];
  for (int i = 1; i < static_cast<int>(blockDim.x) / 32; ++i) largest = fmaxf(largest, parts[i]);
  return largest;
}

/// A block takes a row and reads it once. Each thread keeps its maximum so far, and the sum of
/// exp(x - maximum), which it rescales at a new maximum. A NaN is never a maximum, but it is in the
/// sum.
template <int V, int K>
__device__ __forceinline__ void log_sum_exp(const LogSumExp& a) {
  LONGSPAN_SHARED(float, largest_of_warp, [kLogitThreads / 32]);
  LONGSPAN_SHARED(double, sum_of_warp, [kLogitThreads / 32]);
  const float* logits = a.logits + static_cast<long long>(blockIdx.x) * a.size;
  const int step = static_cast<int>(blockDim.x) * V;
  float largest = minus_infinity();
  double sum = 0;
  for (int begin = static_cast<int>(threadIdx.x) * V; begin < a.size; begin += K * step) {
    float x[K][V];
    float top = minus_infinity();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = begin + k * step;
      if (i < a.size) {
        load_numbers(logits + i, x[k]);
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) x[k][v] = minus_infinity();
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) top = fmaxf(top, x[k][v]);
    }
    if (top > largest) {
      sum *= exp(static_cast<double>(largest) - static_cast<double>(top));
      largest = top;
    }
    // Where all numbers so far are -inf, a shift of 0 keeps NaN out of the sum.
    const float shift = largest == minus_infinity() ? 0.0f : largest;
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) sum += static_cast<double>(expf(x[k][v] - shift));
    }
  }
  const float of_row = block_max(largest, largest_of_warp);
  sum *= exp(static_cast<double>(largest) - static_cast<double>(of_row));
  sum = block_sum(sum, sum_of_warp);
  if (threadIdx.x > 0) return;
  a.lse[blockIdx.x] = static_cast<double>(of_row) + log(sum);
  a.picked[blockIdx.x] = static_cast<double>(logits[a.labels[blockIdx.x]]);
}

/// out = scale (softmax(logits) - onehot(label)). blockIdx.x: the row, blockIdx.y: a part of it.
/// The factor corrects the rounding of the log-sum-exp.
template <typename Y, int V, int K>
__device__ __forceinline__ void cross_entropy_gradient(const CrossEntropyGradient& a) {
  LONGSPAN_SHARED(float, factor_of_row);
  const long long row = blockIdx.x, offset = row * a.size;
  const float* logits = a.logits + offset;
  const int step = static_cast<int>(blockDim.x) * V;
  const int first = static_cast<int>(blockIdx.y) * K * step + static_cast<int>(threadIdx.x) * V;
  Packed<float, V> held[K] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = first + k * step;
    if (i < a.size) held[k] = load<float, V>(logits + i);
  }
  const double lse = a.lse[row];
  const float rounded = static_cast<float>(lse), scale = a.scale[row];
  if (threadIdx.x == 0) {
    factor_of_row = static_cast<float>(scale * exp(static_cast<double>(rounded) - lse));
  }
  __syncthreads();
  const float factor = factor_of_row;
  const long long label = a.labels[row];
  Y* out = static_cast<Y*>(a.out) + offset;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = first + k * step;
    if (i >= a.size) break;
    float x[V];
    unpack(held[k], x);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      x[v] = factor * expf(x[v] - rounded);
      if (i + v == label) x[v] -= scale;
    }
    store_numbers(out + i, x);
  }
}

#define LONGSPAN_LOG_SUM_EXP(name, V, K)            \
  LONGSPAN_KERNEL(name, LogSumExp, kLogitThreads) { \
    log_sum_exp<V, K>(a);                           \
  }
#define LONGSPAN_GRADIENT(name, Y, V)                          \
  LONGSPAN_KERNEL(name, CrossEntropyGradient, kBlockThreads) { \
    cross_entropy_gradient<Y, V, kLogitVectorsOfThread>(a);    \
  }
LONGSPAN_LOG_SUM_EXP(log_sum_exp_v4, 4, kLogitVectorsAtOnce)
LONGSPAN_LOG_SUM_EXP(log_sum_exp_v1, 1, kLogitScalarsAtOnce)
LONGSPAN_GRADIENT(cross_entropy_gradient_f_v4, float, 4)
LONGSPAN_GRADIENT(cross_entropy_gradient_f_v1, float, 1)
LONGSPAN_GRADIENT(cross_entropy_gradient_b_v4, bf16, 4)
LONGSPAN_GRADIENT(cross_entropy_gradient_b_v1, bf16, 1)

}  // namespace longspan::cuda
