// Values of matrices in 4 bits (kernels/four_bits.h, kernels/grouped_bits.h), to the bits of the
// code for CPUs. A thread unpacks V values. Multiplications and additions that a compiler would
// fuse are rounded apart.

namespace longspan::cuda {

/// The scale of a block of kPackedBlock values.
__device__ __forceinline__ float scale_of(const PackedBlocks& a, long long block) {
  if (a.group_scales == nullptr) return static_cast<const float*>(a.scales)[block];
  const float own = a.scale_numbers[static_cast<const unsigned char*>(a.scales)[block]];
  return __fadd_rn(__fmul_rn(own, a.group_scales[block / kPackedScales]), *a.mean);
}

/// Value i of a matrix in blocks.
__device__ __forceinline__ float value_of(const PackedBlocks& a, long long i) {
  const unsigned code = a.codes[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15u;
  return __fmul_rn(a.numbers[code], scale_of(a, i / kPackedBlock));
}

template <typename S, int V>
__device__ __forceinline__ void unpack_blocks(const PackedBlocks& a) {
  const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (first >= a.num_values) return;
  S* const values = static_cast<S*>(a.values);
  if constexpr (V == 1) {
    const float x[1] = {value_of(a, first)};
    store_numbers(values + first, x);
  } else if (first + V > a.num_values) {
    for (long long i = first; i < a.num_values; ++i) {
      const float x[1] = {value_of(a, i)};
      store_numbers(values + i, x);
    }
  } else {
    static_assert(V == 8 && kPackedBlock % V == 0, "a word of codes has one scale");
    const unsigned word = *reinterpret_cast<const unsigned*>(a.codes + first / 2);
    const float scale = scale_of(a, first / kPackedBlock);
    float x[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      // The first value of a byte is in the upper half.
      x[v] = __fmul_rn(a.numbers[word >> (v / 2 * 8 + (v % 2 == 0 ? 4 : 0)) & 15u], scale);
    }
    store_numbers(values + first, x);
  }
}

template <typename S, int V>
__device__ __forceinline__ void unpack_groups(const PackedGroups& a) {
  const long long parts = a.num_columns / V;
  const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long row = thread / parts, column = thread % parts * V;
  if (row >= a.num_rows) return;
  const unsigned char* const codes = a.codes + row * a.row_bytes + column / 2;
  // With V == 1, the code lies in the lower half of the byte at even columns.
  const unsigned word = V == 1 ? static_cast<unsigned>(*codes) >> (column % 2 * 4)
                               : *reinterpret_cast<const unsigned*>(codes);
  float x[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const long long group = row * a.num_groups + a.column_groups[column + v];
    const int code = static_cast<int>(word >> (4 * v) & 15u);
    x[v] = __fmul_rn(a.scales[group], static_cast<float>(code - static_cast<int>(a.zeros[group])));
  }
  store_numbers(static_cast<S*>(a.values) + row * a.num_columns + column, x);
}

#define LONGSPAN_UNPACK(type, S, V)                                           \
  LONGSPAN_KERNEL(unpack_blocks_##type##_v##V, PackedBlocks, kBlockThreads) { \
    unpack_blocks<S, V>(a);                                                   \
  }                                                                           \
  LONGSPAN_KERNEL(unpack_groups_##type##_v##V, PackedGroups, kBlockThreads) { \
    unpack_groups<S, V>(a);                                                   \
  }

LONGSPAN_UNPACK(f, float, 8)
LONGSPAN_UNPACK(f, float, 1)
LONGSPAN_UNPACK(b, bf16, 8)
LONGSPAN_UNPACK(b, bf16, 1)

}  // namespace longspan::cuda
