// Dropout by a hash of a seed, the row's key and the column (kernels/dropout.h). A thread takes one
// vector of columns in several rows, and hashes the columns once.

namespace longspan::cuda {

/// The finalizer of splitmix64.
__device__ __forceinline__ unsigned long long mixed(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

template <typename S, int V>
__device__ __forceinline__ void drop_out(const DropOut& a) {
  const long long vectors = a.num_columns / V;
  const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long column = thread % vectors * V;
  const long long first = thread / vectors * kDropOutRows;
  if (first >= a.num_rows) return;
  unsigned long long of_column[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    of_column[v] = mixed(static_cast<unsigned long long>(column + v + 1) * 0x9e3779b97f4a7c15ull);
  }
  const long long end = min(first + kDropOutRows, a.num_rows);
  for (long long row = first; row < end; ++row) {
    const unsigned long long of_row =
        mixed(static_cast<unsigned long long>(a.keys[row]) + a.seed);
    const long long at = row * a.num_columns + column;
    float x[V];
    load_numbers(static_cast<const S*>(a.x) + at, x);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const bool kept = (mixed(of_row + of_column[v]) & kHashMask) >= a.limit;
      x[v] = x[v] * a.scale * (kept ? 1.0f : 0.0f);
    }
    store_numbers(static_cast<S*>(a.y) + at, x);
  }
}

#define LONGSPAN_DROP_OUT(type, S, V) \
  LONGSPAN_KERNEL(drop_out_##type##_v##V, DropOut, kBlockThreads) { drop_out<S, V>(a); }

LONGSPAN_DROP_OUT(f, float, 4)
LONGSPAN_DROP_OUT(f, float, 1)
LONGSPAN_DROP_OUT(b, bf16, 8)
LONGSPAN_DROP_OUT(b, bf16, 1)

}  // namespace longspan::cuda
