// Rotary embedding (arXiv 2104.09864) of rows of heads. threadIdx.y: rows of a block.

namespace longspan::cuda {

/// (x[f], x[f + F]) by the row's angle of pair f. Each thread takes V pairs of a head, or V of the
/// numbers that are not rotated.
template <typename S, int V>
__device__ __forceinline__ void rotate(const Rotate& a) {
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.num_rows) return;
  const S* x = static_cast<const S*>(a.x) + row * a.row_stride;
  S* y = static_cast<S*>(a.y) + row * a.num_heads * a.head_dim;
  const float* cosines = a.cos + row * a.num_pairs;
  const float* sines = a.sin + row * a.num_pairs;
  const int pairs = a.num_pairs / V;
  const int rest = a.copies_rest ? (a.head_dim - 2 * a.num_pairs) / V : 0;
  const int parts = pairs + rest;
  for (int item = static_cast<int>(threadIdx.x); item < a.num_heads * parts;
       item += static_cast<int>(blockDim.x)) {
    const int head = item / parts, part = item % parts;
    const S* from = x + head * a.head_stride;
    S* to = y + static_cast<long long>(head) * a.head_dim;
    if (part >= pairs) {
      const int i = 2 * a.num_pairs + (part - pairs) * V;
      store<S, V>(to + i, load<S, V>(from + i));
      continue;
    }
    const int f = part * V;
    float low[V], high[V], cosine[V], sine[V];
    load_numbers(from + f, low);
    load_numbers(from + f + a.num_pairs, high);
    load_numbers(cosines + f, cosine);
    load_numbers(sines + f, sine);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float s = a.sign * sine[v], was = low[v];
      low[v] = was * cosine[v] - high[v] * s;
      high[v] = high[v] * cosine[v] + was * s;
    }
    store_numbers(to + f, low);
    store_numbers(to + f + a.num_pairs, high);
  }
}

#define LONGSPAN_ROTATE(name, S, V)              \
  LONGSPAN_KERNEL(name, Rotate, kBlockThreads) { \
    rotate<S, V>(a);                             \
  }
LONGSPAN_ROTATE(rotate_f_v4, float, 4)
LONGSPAN_ROTATE(rotate_f_v1, float, 1)
LONGSPAN_ROTATE(rotate_b_v8, bf16, 8)
LONGSPAN_ROTATE(rotate_b_v1, bf16, 1)

}  // namespace longspan::cuda
