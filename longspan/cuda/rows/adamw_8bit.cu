// One update of AdamW with moments in 8 bits (optim/moments_8bit.h), to the bits of the code for
// CPUs: multiplications and additions that a compiler would fuse are rounded apart. A warp updates
// a block of kMomentBlock elements, and holds both moments in registers. V: elements of one memory
// access.

namespace longspan::cuda {

/// Tables of both moments, in shared memory: the numbers of the codes, and the middles of
/// neighbouring numbers.
struct MomentTables {
  float numbers[2][256];
  /// Middles as a search tree, so that the lanes of a warp read from different banks: node i has
  /// the children 2 i and 2 i + 1. The first node is 1.
  float middles[2][256];
};

/// The index of the middle at a node: level by level, each level in ascending order.
__device__ __forceinline__ int middle_of_node(int node) {
  int level = 0;
  while ((node >> (level + 1)) != 0) ++level;
  const int place = node - (1 << level);
  return ((2 * place + 1) << (7 - level)) - 1;
}

__device__ __forceinline__ float middle(const float* numbers, int i) {
  return __fmul_rn(0.5f, __fadd_rn(numbers[i], numbers[i + 1]));
}

__device__ __forceinline__ void make_tables(const Update8bit& a, MomentTables& tables) {
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += static_cast<int>(blockDim.x)) {
    tables.numbers[0][i] = a.first_numbers[i];
    tables.numbers[1][i] = a.second_numbers[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += static_cast<int>(blockDim.x)) {
    const int place = i == 0 ? 0 : middle_of_node(i);  // node 0 is not used
    tables.middles[0][i] = middle(tables.numbers[0], place);
    tables.middles[1][i] = middle(tables.numbers[1], place);
  }
  __syncthreads();
}

/// The code of the nearest number; a number in the middle of two goes to the lower one.
__device__ __forceinline__ unsigned nearest_code(const float* middles, float x) {
  int node = 1;
#pragma unroll
  for (int level = 0; level < 8; ++level) node = 2 * node + (x > middles[node] ? 1 : 0);
  return static_cast<unsigned>(node - 256);
}

/// Loads the first `count` of V elements; the others are 0.
template <typename S, int V>
__device__ __forceinline__ void load_some(const S* from, int count, float (&x)[V]) {
  if (V > 1 && count == V) {
    load_numbers(from, x);
    return;
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    float one[1] = {0.0f};
    if (v < count) load_numbers(from + v, one);
    x[v] = one[0];
  }
}

template <typename S, int V>
__device__ __forceinline__ void store_some(S* to, int count, const float (&x)[V]) {
  if (V > 1 && count == V) {
    store_numbers(to, x);
    return;
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float one[1] = {x[v]};
    if (v < count) store_numbers(to + v, one);
  }
}

/// Restores a moment of the first `count` of V elements; the others are 0.
template <int V>
__device__ __forceinline__ void restore_some(const unsigned char* codes, int count,
                                             const float* numbers, float scale, float (&x)[V]) {
  if constexpr (V > 1) {
    if (count == V) {
      const Packed<unsigned char, V> packed = load<unsigned char, V>(codes);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        x[v] = __fmul_rn(numbers[packed.words[v / 4] >> (v % 4 * 8) & 255u], scale);
      }
      return;
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) x[v] = v < count ? __fmul_rn(numbers[codes[v]], scale) : 0.0f;
}

template <int V>
__device__ __forceinline__ void quantize_some(const float (&x)[V], int count, const float* middles,
                                              float scale, unsigned char* codes) {
  unsigned words[(V + 3) / 4] = {};
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float unit = scale == 0.0f ? 0.0f : __fdiv_rn(x[v], scale);
    words[v / 4] |= nearest_code(middles, unit) << (v % 4 * 8);
  }
  if constexpr (V > 1) {
    if (count == V) {
      Packed<unsigned char, V> packed;
#pragma unroll
      for (int i = 0; i < V / 4; ++i) packed.words[i] = words[i];
      store<unsigned char, V>(codes, packed);
      return;
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (v < count) codes[v] = static_cast<unsigned char>(words[v / 4] >> (v % 4 * 8));
  }
}

/// An element of a block, and its place there.
struct PlacedNumber {
  float x;
  int place;
};

/// Returns the number of larger magnitude; of equal ones, the first.
__device__ __forceinline__ PlacedNumber larger_of(const PlacedNumber& a, const PlacedNumber& b) {
  const float left = fabsf(a.x), right = fabsf(b.x);
  return right > left || (right == left && b.place < a.place) ? b : a;
}

/// Returns the first element of largest magnitude among those of a warp's block, with its sign; 0
/// if all are 0. Elements that are no number do not count.
template <int kParts, int V>
__device__ __forceinline__ float scale_of_warp(const float (&x)[kParts][V]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  PlacedNumber largest{0.0f, kMomentBlock};
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (fabsf(x[part][v]) > fabsf(largest.x)) {
        largest = {x[part][v], part * 32 * V + lane * V + v};
      }
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const PlacedNumber other{__shfl_xor_sync(kAllLanes, largest.x, step),
                             __shfl_xor_sync(kAllLanes, largest.place, step)};
    largest = larger_of(largest, other);
  }
  return largest.x;
}

template <typename S, int V>
__device__ __forceinline__ void update_8bit(const Update8bit& a) {
  constexpr int kParts = kMomentBlock / (32 * V);
  LONGSPAN_SHARED(MomentTables, tables);
  make_tables(a, tables);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
            warps = static_cast<int>(blockDim.x / 32);
  const float of_gradient1 = __fadd_rn(1.0f, -a.beta1), of_gradient2 = __fadd_rn(1.0f, -a.beta2);
  const long long num_blocks = (a.num_values + kMomentBlock - 1) / kMomentBlock;
  // All warps of a block of threads loop equally often.
  for (long long begin = static_cast<long long>(blockIdx.x) * warps; begin < num_blocks;
       begin += static_cast<long long>(gridDim.x) * warps) {
    const long long block = begin + warp;
    const bool is_there = block < num_blocks;
    const int size = static_cast<int>(max(
        0ll, min(static_cast<long long>(kMomentBlock), a.num_values - block * kMomentBlock)));
    const float first_scale = is_there ? a.first_scales[block] : 0.0f,
                second_scale = is_there ? a.second_scales[block] : 0.0f;
    float first[kParts][V], second[kParts][V];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const long long at = block * kMomentBlock + part * 32 * V + lane * V;
      const int count = max(0, min(V, size - part * 32 * V - lane * V));
      float g[V], x[V];
      load_some(static_cast<const S*>(a.gradient) + at, count, g);
      load_some(static_cast<const S*>(a.values) + at, count, x);
      restore_some(a.first_codes + at, count, tables.numbers[0], first_scale, first[part]);
      restore_some(a.second_codes + at, count, tables.numbers[1], second_scale, second[part]);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        first[part][v] =
            __fadd_rn(__fmul_rn(a.beta1, first[part][v]), __fmul_rn(of_gradient1, g[v]));
        second[part][v] = __fadd_rn(__fmul_rn(a.beta2, second[part][v]),
                                    __fmul_rn(__fmul_rn(of_gradient2, g[v]), g[v]));
        const float denominator =
            __fadd_rn(__fdiv_rn(__fsqrt_rn(second[part][v]), a.root_correction2), a.epsilon);
        x[v] = __fadd_rn(__fmul_rn(x[v], a.decay),
                         -__fdiv_rn(__fmul_rn(a.rate, first[part][v]), denominator));
      }
      store_some(static_cast<S*>(a.values) + at, count, x);
    }
    const float first_made = scale_of_warp(first), second_made = scale_of_warp(second);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const long long at = block * kMomentBlock + part * 32 * V + lane * V;
      const int count = max(0, min(V, size - part * 32 * V - lane * V));
      quantize_some(first[part], count, tables.middles[0], first_made, a.first_codes + at);
      quantize_some(second[part], count, tables.middles[1], second_made, a.second_codes + at);
    }
    if (is_there && lane == 0) {
      a.first_scales[block] = first_made;
      a.second_scales[block] = second_made;
    }
  }
}

// Four blocks leave 64 registers to a thread; without a number compilers take up to 70, or spill.
LONGSPAN_DENSE_KERNEL(adamw_8bit_f_v4, Update8bit, kBlockThreads, 4) { update_8bit<float, 4>(a); }
LONGSPAN_KERNEL(adamw_8bit_f_v1, Update8bit, kBlockThreads) { update_8bit<float, 1>(a); }
LONGSPAN_DENSE_KERNEL(adamw_8bit_b_v8, Update8bit, kBlockThreads, 4) { update_8bit<bf16, 8>(a); }
LONGSPAN_KERNEL(adamw_8bit_b_v1, Update8bit, kBlockThreads) { update_8bit<bf16, 1>(a); }

}  // namespace longspan::cuda
