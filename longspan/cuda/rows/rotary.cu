// Rotary embedding (arXiv 2104.09864) of rows of heads. threadIdx.y: row of the block.

namespace longspan::cuda {

/// Rotates (x[f], x[f + F]) by the row's angle of pair f; for neighbours, (x[2f], x[2f + 1]). Each
/// thread takes V pairs of a head, which lie in two vectors, or V numbers without rotation.
template <typename S, int V, bool kNeighbours>
__device__ __forceinline__ void rotate(const Rotate& a) {
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.num_rows) return;
  const S* x = static_cast<const S*>(a.x) + row * a.at_x.row_stride;
  S* y = static_cast<S*>(a.y) + row * a.num_heads * a.head_dim;
  const float* cosines = a.cos + row * a.num_pairs;
  const float* sines = a.sin + row * a.num_pairs;
  const int pairs = a.num_pairs / V;
  const int rest = a.copies_rest ? (a.head_dim - 2 * a.num_pairs) / V : 0;
  const int parts = pairs + rest;
  for (int item = static_cast<int>(threadIdx.x); item < a.num_heads * parts;
       item += static_cast<int>(blockDim.x)) {
    const int head = item / parts, part = item % parts;
    const S* from = x + head * a.at_x.head_stride;
    S* to = y + static_cast<long long>(head) * a.head_dim;
    if (part >= pairs) {
      const int i = 2 * a.num_pairs + (part - pairs) * V;
      store<S, V>(to + i, load<S, V>(from + i));
      continue;
    }
    const int f = part * V;
    const int first = kNeighbours ? 2 * f : f, second = first + (kNeighbours ? V : a.num_pairs);
    float both[2][V], cosine[V], sine[V];
    load_numbers(from + first, both[0]);
    load_numbers(from + second, both[1]);
    load_numbers(cosines + f, cosine);
    load_numbers(sines + f, sine);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float& low = kNeighbours ? both[2 * v / V][2 * v % V] : both[0][v];
      float& high = kNeighbours ? both[(2 * v + 1) / V][(2 * v + 1) % V] : both[1][v];
      const float s = a.sign * sine[v], was = low;
      low = was * cosine[v] - high * s;
      high = high * cosine[v] + was * s;
    }
    store_numbers(to + first, both[0]);
    store_numbers(to + second, both[1]);
  }
}

// rotate_<pairs>_<dtype>_v<numbers of a memory access>
#define LONGSPAN_ROTATE(name, S, V, neighbours) \
  LONGSPAN_KERNEL(name, Rotate, kBlockThreads) { rotate<S, V, neighbours>(a); }
#define LONGSPAN_ROTATES(types, S, V)                        \
  LONGSPAN_ROTATE(rotate_halves_##types##_v##V, S, V, false) \
  LONGSPAN_ROTATE(rotate_neighbours_##types##_v##V, S, V, true)

LONGSPAN_ROTATES(f, float, 4)
LONGSPAN_ROTATES(f, float, 1)
LONGSPAN_ROTATES(b, bf16, 8)
LONGSPAN_ROTATES(b, bf16, 1)

}  // namespace longspan::cuda
