// SwiGLU and GeGLU (arXiv 2002.05202), and their gradients. Each thread takes one vector; the last
// one takes what is left behind whole vectors, a number at a time.

namespace longspan::cuda {

struct Silu {
  /// act(gate), and its derivative.
  __device__ static __forceinline__ float value(float g) { return g * sigmoid(g); }
  __device__ static __forceinline__ float with_slope(float g, float& slope) {
    const float s = sigmoid(g), act = g * s;
    slope = s + act * (1.0f - s);
    return act;
  }
};

/// gelu(x) = x sigmoid(slope x (1 + cubic x^2)), the form with tanh of arXiv 1606.08415:
/// 0.5 x (1 + tanh(y)) = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float kSlope = 1.5957691216057307f, kCubic = 0.044715f;
  __device__ static __forceinline__ float value(float g) {
    return g * sigmoid(kSlope * g * (1.0f + kCubic * g * g));
  }
  __device__ static __forceinline__ float with_slope(float g, float& slope) {
    const float s = sigmoid(kSlope * g * (1.0f + kCubic * g * g)), act = g * s;
    slope = s + act * (1.0f - s) * kSlope * (1.0f + 3.0f * kCubic * g * g);
    return act;
  }
};

template <typename Act, typename S, int V>
__device__ __forceinline__ void gated_out_part(const Gated& a, long long i) {
  float g[V], u[V];
  load_numbers(static_cast<const S*>(a.gate) + i, g);
  load_numbers(static_cast<const S*>(a.up) + i, u);
#pragma unroll
  for (int v = 0; v < V; ++v) g[v] = Act::value(g[v]) * u[v];
  store_numbers(static_cast<S*>(a.act) + i, g);
}

template <typename Act, typename S, int V>
__device__ __forceinline__ void gated_backward_part(const Gated& a, long long i) {
  S *gate = static_cast<S*>(a.gate) + i, *up = static_cast<S*>(a.up) + i,
    *dact = static_cast<S*>(a.act) + i;
  float g[V], u[V], d[V];
  load_numbers(gate, g);
  load_numbers(up, u);
  load_numbers(dact, d);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    float slope;
    const float act = Act::with_slope(g[v], slope);
    g[v] = d[v] * u[v] * slope;
    const float out = act * u[v];
    u[v] = d[v] * act;
    d[v] = out;
  }
  store_numbers(gate, g);
  store_numbers(up, u);
  store_numbers(dact, d);
}

template <typename Act, bool kBackward, typename S, int V>
__device__ __forceinline__ void gated(const Gated& a) {
  const long long i =
      (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * static_cast<long long>(V);
  if (i + V <= a.size) {
    if constexpr (kBackward) {
      gated_backward_part<Act, S, V>(a, i);
    } else {
      gated_out_part<Act, S, V>(a, i);
    }
    return;
  }
  for (long long j = i; j < a.size; ++j) {
    if constexpr (kBackward) {
      gated_backward_part<Act, S, 1>(a, j);
    } else {
      gated_out_part<Act, S, 1>(a, j);
    }
  }
}

#define LONGSPAN_GATED(name, Act, backward, S, V) \
  LONGSPAN_KERNEL(name, Gated, kBlockThreads) {   \
    gated<Act, backward, S, V>(a);                \
  }
#define LONGSPAN_GATED_OF(type, S, V)                             \
  LONGSPAN_GATED(swiglu_out_##type##_v##V, Silu, false, S, V)     \
  LONGSPAN_GATED(swiglu_backward_##type##_v##V, Silu, true, S, V) \
  LONGSPAN_GATED(geglu_out_##type##_v##V, GeluTanh, false, S, V)  \
  LONGSPAN_GATED(geglu_backward_##type##_v##V, GeluTanh, true, S, V)

LONGSPAN_GATED_OF(f, float, 4)
LONGSPAN_GATED_OF(f, float, 1)
LONGSPAN_GATED_OF(b, bf16, 8)
LONGSPAN_GATED_OF(b, bf16, 1)

}  // namespace longspan::cuda
