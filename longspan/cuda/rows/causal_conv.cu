// A causal depthwise convolution with silu (kernels/causal_conv.h). A thread has V channels of some
// consecutive tokens, and keeps the last kConvTaps inputs in registers.

namespace longspan::cuda {

/// The V channels of a thread, and the tokens [first, end) that it computes.
struct ConvPlace {
  long long first, end;
  int channel;
};
template <int V>
__device__ __forceinline__ ConvPlace place_of(const CausalConv& a) {
  const long long first = static_cast<long long>(blockIdx.y) * a.tokens_of_thread;
  return {first, min(first + a.tokens_of_thread, a.num_tokens),
          static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * V};
}

template <typename S, int V>
struct ConvWindow {
  float weight[kConvTaps][V];
  float x[kConvTaps][V];  // inputs of the last tokens, the newest last

  __device__ __forceinline__ void begin(const CausalConv& a, const ConvPlace& at) {
#pragma unroll
    for (int i = 0; i < kConvTaps; ++i) {
      load_numbers(a.weight + static_cast<long long>(i) * a.num_channels + at.channel, weight[i]);
    }
#pragma unroll
    for (int i = 1; i < kConvTaps; ++i) read(a, at.first - kConvTaps + i, at.channel, x[i]);
  }
  /// Reads the next token.
  __device__ __forceinline__ void move_to(const CausalConv& a, long long t, int channel) {
#pragma unroll
    for (int i = 1; i < kConvTaps; ++i) {
#pragma unroll
      for (int v = 0; v < V; ++v) x[i - 1][v] = x[i][v];
    }
    read(a, t, channel, x[kConvTaps - 1]);
  }
  /// The sum before the silu. `earlier`: how many earlier tokens the last token sees.
  __device__ __forceinline__ void sum_of(int earlier, float (&sum)[V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = 0;
#pragma unroll
    for (int i = 0; i < kConvTaps; ++i) {
      if (kConvTaps - 1 - i > earlier) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += weight[i][v] * x[i][v];
    }
  }
  /// Reads zeros where there is no token.
  __device__ __forceinline__ static void read(const CausalConv& a, long long t, int channel,
                                              float (&to)[V]) {
    const bool is_before = t < 0;
    const void* const rows = is_before ? a.before : a.x;
    const long long at = is_before ? t + a.num_before : t;
    if (at < 0) {
#pragma unroll
      for (int v = 0; v < V; ++v) to[v] = 0;
    } else {
      load_numbers(static_cast<const S*>(rows) + at * a.num_channels + channel, to);
    }
  }
};

template <typename S, int V>
__device__ __forceinline__ void convolve(const CausalConv& a) {
  const ConvPlace at = place_of<V>(a);
  if (at.channel >= a.num_channels) return;
  ConvWindow<S, V> window;
  window.begin(a, at);
  for (long long t = at.first; t < at.end; ++t) {
    window.move_to(a, t, at.channel);
    float y[V];
    window.sum_of(a.earlier[t], y);
#pragma unroll
    for (int v = 0; v < V; ++v) y[v] *= sigmoid(y[v]);
    store_numbers(static_cast<S*>(a.y) + t * a.num_channels + at.channel, y);
  }
}

template <typename S, int V>
__device__ __forceinline__ void convolve_back(const CausalConvBackward& a) {
  const CausalConv& forward = a.forward;
  const ConvPlace at = place_of<V>(forward);
  if (at.channel >= forward.num_channels) return;
  ConvWindow<S, V> window;
  window.begin(forward, at);
  float dx[kConvTaps][V] = {}, dweight[kConvTaps][V] = {};
  // Writes the gradient of token t, unless another thread has it.
  const auto write = [&](long long t, const float (&x)[V]) {
    if (t >= at.end || t < (at.first == 0 ? -forward.num_before : at.first)) return;
    S* const to =
        t >= 0 ? static_cast<S*>(a.dx) + t * forward.num_channels
               : static_cast<S*>(a.dbefore) + (t + forward.num_before) * forward.num_channels;
    store_numbers(to + at.channel, x);
  };
  // The next tokens see the last of this thread's.
  const long long end = min(at.end + kConvTaps - 1, forward.num_tokens);
  for (long long t = at.first; t < end; ++t) {
    window.move_to(forward, t, at.channel);
    const int earlier = forward.earlier[t];
    float sum[V], dsum[V];
    window.sum_of(earlier, sum);
    load_numbers(static_cast<const S*>(a.dy) + t * forward.num_channels + at.channel, dsum);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float gate = sigmoid(sum[v]);
      dsum[v] *= gate * (1 + sum[v] * (1 - gate));
    }
#pragma unroll
    for (int i = 0; i < kConvTaps; ++i) {
      const bool sees = kConvTaps - 1 - i <= earlier;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float moved = i + 1 < kConvTaps ? dx[(i + 1) % kConvTaps][v] : 0.0f;
        dx[i][v] = sees ? moved + window.weight[i][v] * dsum[v] : moved;
        if (sees && t < at.end) dweight[i][v] += dsum[v] * window.x[i][v];
      }
    }
    write(t - kConvTaps + 1, dx[0]);
  }
#pragma unroll
  for (int i = 1; i < kConvTaps; ++i) write(end - kConvTaps + i, dx[i]);
#pragma unroll
  for (int i = 0; i < kConvTaps; ++i) {
    const long long row = static_cast<long long>(blockIdx.y) * kConvTaps + i;
    store_numbers(a.dweight + row * forward.num_channels + at.channel, dweight[i]);
  }
}

#define LONGSPAN_CONVOLVE(type, S, V)                                                          \
  LONGSPAN_KERNEL(causal_conv_##type##_v##V, CausalConv, kBlockThreads) { convolve<S, V>(a); } \
  LONGSPAN_KERNEL(causal_conv_backward_##type##_v##V, CausalConvBackward, kBlockThreads) {     \
    convolve_back<S, V>(a);                                                                    \
  }

LONGSPAN_CONVOLVE(f, float, 4)
LONGSPAN_CONVOLVE(f, float, 1)
LONGSPAN_CONVOLVE(b, bf16, 8)
LONGSPAN_CONVOLVE(b, bf16, 1)

}  // namespace longspan::cuda
