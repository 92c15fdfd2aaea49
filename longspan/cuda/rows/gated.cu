// SwiGLU and GeGLU (arXiv 2002.05202), the clamped SwiGLU of gpt-oss (arXiv 2508.10925), and their
// gradients. Each thread takes one vector. The last thread takes the numbers after the last whole
// vector, one at a time.

namespace longspan::cuda {

struct Silu {
  /// act(gate). with_slope() also gives its derivative.
  __device__ static __forceinline__ float value(float g) { return g * sigmoid(g); }
  __device__ static __forceinline__ float with_slope(float g, float& slope) {
    const float s = sigmoid(g), act = g * s;
    slope = s + act * (1.0f - s);
    return act;
  }
};

/// gelu(x) = x sigmoid(slope x (1 + cubic x^2)), the tanh form of arXiv 1606.08415: 0.5 x (1 +
/// tanh(y)) = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3).
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

/// act(gate) up.
template <typename Act>
struct GatedBy {
  __device__ static __forceinline__ float out(const Gated& /*a*/, float g, float u) {
    return Act::value(g) * u;
  }
  /// Replaces gate, up and d loss / d out by d loss / d gate, d loss / d up and out.
  __device__ static __forceinline__ void backward(const Gated& /*a*/, float& g, float& u,
                                                  float& d) {
    float slope;
    const float act = Act::with_slope(g, slope), made = act * u;
    g = d * u * slope;
    u = d * act;
    d = made;
  }
};

/// gate sigmoid(slope gate) (up + 1), with gate at most `limit` and up within [-limit, limit].
struct Clamped {
  // NaN stays NaN.
  __device__ static __forceinline__ float at_most(float x, float limit) {
    return x > limit ? limit : x;
  }
  __device__ static __forceinline__ float within(float x, float limit) {
    return x < -limit ? -limit : at_most(x, limit);
  }
  __device__ static __forceinline__ float out(const Gated& a, float g, float u) {
    g = at_most(g, a.limit);
    return g * sigmoid(a.slope * g) * (within(u, a.limit) + 1.0f);
  }
  __device__ static __forceinline__ void backward(const Gated& a, float& g, float& u, float& d) {
    const bool gate_is_held = g > a.limit, up_is_held = fabsf(u) > a.limit;
    const float gate = at_most(g, a.limit), up = within(u, a.limit) + 1.0f;
    const float open = sigmoid(a.slope * gate), act = gate * open;
    g = gate_is_held ? 0.0f : d * up * (open + a.slope * act * (1.0f - open));
    u = up_is_held ? 0.0f : d * act;
    d = act * up;
  }
};

template <typename Gate, typename S, int V>
__device__ __forceinline__ void gated_out_part(const Gated& a, long long i) {
  float g[V], u[V];
  load_numbers(static_cast<const S*>(a.gate) + i, g);
  load_numbers(static_cast<const S*>(a.up) + i, u);
#pragma unroll
  for (int v = 0; v < V; ++v) g[v] = Gate::out(a, g[v], u[v]);
  store_numbers(static_cast<S*>(a.act) + i, g);
}

template <typename Gate, typename S, int V>
__device__ __forceinline__ void gated_backward_part(const Gated& a, long long i) {
  S *gate = static_cast<S*>(a.gate) + i, *up = static_cast<S*>(a.up) + i,
    *dact = static_cast<S*>(a.act) + i;
  float g[V], u[V], d[V];
  load_numbers(gate, g);
  load_numbers(up, u);
  load_numbers(dact, d);
#pragma unroll
  for (int v = 0; v < V; ++v) Gate::backward(a, g[v], u[v], d[v]);
  store_numbers(gate, g);
  store_numbers(up, u);
  store_numbers(dact, d);
}

template <typename Gate, bool kBackward, typename S, int V>
__device__ __forceinline__ void gated(const Gated& a) {
  const long long i =
      (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * static_cast<long long>(V);
  if (i + V <= a.size) {
    if constexpr (kBackward) {
      gated_backward_part<Gate, S, V>(a, i);
    } else {
      gated_out_part<Gate, S, V>(a, i);
    }
    return;
  }
  for (long long j = i; j < a.size; ++j) {
    if constexpr (kBackward) {
      gated_backward_part<Gate, S, 1>(a, j);
    } else {
      gated_out_part<Gate, S, 1>(a, j);
    }
  }
}

#define LONGSPAN_GATED(name, Gate, backward, S, V) \
  LONGSPAN_KERNEL(name, Gated, kBlockThreads) {    \
    gated<Gate, backward, S, V>(a);                \
  }
#define LONGSPAN_GATED_BY(gate, Gate, type, S, V)            \
  LONGSPAN_GATED(gate##_out_##type##_v##V, Gate, false, S, V) \
  LONGSPAN_GATED(gate##_backward_##type##_v##V, Gate, true, S, V)
#define LONGSPAN_GATED_OF(type, S, V)                      \
  LONGSPAN_GATED_BY(swiglu, GatedBy<Silu>, type, S, V)     \
  LONGSPAN_GATED_BY(geglu, GatedBy<GeluTanh>, type, S, V) \
  LONGSPAN_GATED_BY(clamped, Clamped, type, S, V)

LONGSPAN_GATED_OF(f, float, 4)
LONGSPAN_GATED_OF(f, float, 1)
LONGSPAN_GATED_OF(b, bf16, 8)
LONGSPAN_GATED_OF(b, bf16, 1)

}  // namespace longspan::cuda
