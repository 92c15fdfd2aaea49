// Storage of numbers, and sums over the threads of a row. NVRTC compiles it without headers, so
// fp32 and bf16 are read as words. Arithmetic is fp32. Without a GPU, a test runs the kernels as
// ordinary functions (testing/cuda_threads.h), without GPU instructions. S, Y: storage types. V:
// numbers of one memory access.

#ifndef LONGSPAN_KERNEL
/// A kernel with one argument, `a`, for blocks of at most `threads` threads.
#define LONGSPAN_KERNEL(name, Argument, threads) \
  extern "C" __global__ void __launch_bounds__(threads) name(Argument a)
/// The same, with at least `blocks` blocks at once on a multiprocessor.
#define LONGSPAN_DENSE_KERNEL(name, Argument, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(Argument a)
/// Shared memory of a block: Type name, with these dimensions.
#define LONGSPAN_SHARED(Type, name, ...) __shared__ Type name __VA_ARGS__
/// Shared memory of a block; the launch gives its size.
#define LONGSPAN_SHARED_FLOATS(name) extern __shared__ __align__(16) float name[]
#endif

namespace longspan::cuda {

struct bf16 {
  unsigned short bits;
};

constexpr unsigned kAllLanes = 0xffffffffu;

/// V contiguous numbers of type S, as words.
template <typename S, int V>
struct Packed {
  static constexpr int kBytes = static_cast<int>(sizeof(S)) * V;
  unsigned words[(kBytes + 3) / 4];
};

template <typename S, int V>
__device__ __forceinline__ Packed<S, V> load(const S* from) {
  Packed<S, V> x;
  if constexpr (Packed<S, V>::kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < Packed<S, V>::kBytes / 16; ++i) {
      const uint4 quad = reinterpret_cast<const uint4*>(from)[i];
      x.words[4 * i] = quad.x;
      x.words[4 * i + 1] = quad.y;
      x.words[4 * i + 2] = quad.z;
      x.words[4 * i + 3] = quad.w;
    }
  } else if constexpr (Packed<S, V>::kBytes == 8) {
    const uint2 pair = *reinterpret_cast<const uint2*>(from);
    x.words[0] = pair.x;
    x.words[1] = pair.y;
  } else if constexpr (Packed<S, V>::kBytes == 4) {
    x.words[0] = *reinterpret_cast<const unsigned*>(from);
  } else {
    x.words[0] = *reinterpret_cast<const unsigned short*>(from);
  }
  return x;
}

template <typename S, int V>
__device__ __forceinline__ void store(S* to, const Packed<S, V>& x) {
  if constexpr (Packed<S, V>::kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < Packed<S, V>::kBytes / 16; ++i) {
      reinterpret_cast<uint4*>(to)[i] =
          make_uint4(x.words[4 * i], x.words[4 * i + 1], x.words[4 * i + 2], x.words[4 * i + 3]);
    }
  } else if constexpr (Packed<S, V>::kBytes == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(x.words[0], x.words[1]);
  } else if constexpr (Packed<S, V>::kBytes == 4) {
    *reinterpret_cast<unsigned*>(to) = x.words[0];
  } else {
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(x.words[0]);
  }
}

template <int V>
__device__ __forceinline__ void unpack(const Packed<float, V>& packed, float (&x)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) x[v] = __uint_as_float(packed.words[v]);
}

template <int V>
__device__ __forceinline__ void unpack(const Packed<bf16, V>& packed, float (&x)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const unsigned word = packed.words[v / 2];
    x[v] = __uint_as_float(v % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
}

template <typename S, int V>
__device__ __forceinline__ void load_numbers(const S* from, float (&x)[V]) {
  unpack(load<S, V>(from), x);
}

/// Rounds to bf16, to nearest, ties to even.
__device__ __forceinline__ unsigned bits_of_bf16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
#endif
}

__device__ __forceinline__ unsigned two_bf16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return bits_of_bf16(low) | bits_of_bf16(high) << 16;
#endif
}

template <int V>
__device__ __forceinline__ void store_numbers(float* to, const float (&x)[V]) {
  Packed<float, V> packed;
#pragma unroll
  for (int v = 0; v < V; ++v) packed.words[v] = __float_as_uint(x[v]);
  store<float, V>(to, packed);
}

template <int V>
__device__ __forceinline__ void store_numbers(bf16* to, const float (&x)[V]) {
  Packed<bf16, V> packed;
  if constexpr (V == 1) {
    packed.words[0] = bits_of_bf16(x[0]);
  } else {
#pragma unroll
    for (int v = 0; v < V; v += 2) packed.words[v / 2] = two_bf16(x[v], x[v + 1]);
  }
  store<bf16, V>(to, packed);
}

/// Loads numbers of a weight, which stays in cache.
template <int V>
__device__ __forceinline__ void load_weight(const void* weight, bool is_bf16, int i,
                                            float (&x)[V]) {
  if (is_bf16) {
    load_numbers(static_cast<const bf16*>(weight) + i, x);
  } else {
    load_numbers(static_cast<const float*>(weight) + i, x);
  }
}

/// Sums over the blockDim.x threads of a row: a power of two up to 32, or a multiple of 32. All
/// threads of the block call it, and all threads of a row get the same bits. `parts`: one number
/// for each warp. Consecutive calls need different `parts`.
__device__ __forceinline__ float row_sum(float x, float* parts) {
  const int threads = static_cast<int>(blockDim.x);
  for (int step = min(threads, 32) / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, step);
  }
  if (threads <= 32) return x;
  const int warps = threads / 32;
  const int first = static_cast<int>(threadIdx.y) * warps;
  if (threadIdx.x % 32 == 0) parts[first + threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += parts[first + i];
  return sum;
}

/// total[size] = the sum over the block's rows of sums[rows, size]. Waits until all threads have
/// written them.
__device__ __forceinline__ void sum_of_rows(const float* sums, int size, float* total) {
  __syncthreads();
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < size; i += threads) {
    float sum = 0;
    for (int y = 0; y < static_cast<int>(blockDim.y); ++y) sum += sums[y * size + i];
    total[i] = sum;
  }
}

/// 1 / (1 + exp(-x)), within a few ulp over the whole range, without overflow.
__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
#ifdef __CUDA_ARCH__
  float r;  // of a number in [1, 2]: within one ulp
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
#else
  const float r = 1.0f / (1.0f + e);
#endif
  return x >= 0 ? r : e * r;
}

/// Returns number i of a vector in bf16 or fp32.
__device__ __forceinline__ float number_of(const void* vector, bool is_bf16, long long i) {
  if (!is_bf16) return static_cast<const float*>(vector)[i];
  return __uint_as_float(static_cast<unsigned>(static_cast<const bf16*>(vector)[i].bits) << 16);
}

}  // namespace longspan::cuda
