// Vectors of the tile code, on the compiler's vector extension: LANES floats each. Included once
// for each instruction set, by tile_products.h.
#pragma once

#include <stdint.h>

#include <utility>
#if LANES > 4
#include <immintrin.h>
#endif

namespace longspan::tiles {
namespace {

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVector __attribute__((vector_size(LANES * 4)));
typedef float LooseVector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMinusInfinity = -__builtin_inff();

inline Vector load(const float* p) { return *reinterpret_cast<const LooseVector*>(p); }
inline void store(float* p, Vector x) { *reinterpret_cast<LooseVector*>(p) = x; }
/// Returns a vector of LANES times x. x - 0 equals x for every x, so the compiler removes the
/// subtraction, and loads a number in memory by one broadcast. 0 + x differs from x for x = -0, so
/// the compiler would keep an addition and a shuffle.
inline Vector splat(float x) { return x - Vector{}; }
/// Returns the larger number of each lane; y where x or y is NaN. The intrinsics are one
/// instruction; for a conditional expression, the compiler may emit a comparison and a selection.
/// (g++ 12 warns of _mm512_max_ps without a mask.)
inline Vector larger_of(Vector x, Vector y) {
#if LANES == 16
  return _mm512_maskz_max_ps(0xFFFF, x, y);
#elif LANES == 8
  return _mm256_max_ps(x, y);
#else
  return x > y ? x : y;
#endif
}
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

/// 2^x for x <= 0; exactly 0 for x <= -127, and at most 2^-126 for x between -127 and -126.
/// Relative error under 1 ulp down to 2^-126. The polynomial is the best of its degree in relative
/// error.
inline Vector exp2_of(Vector x) {
  const Vector magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  // At x = -127 the result is 0: the exponent bits of 2^0 are 127, and 127 - 127 = 0.
  x = larger_of(splat(-127.0f), x);
  const Vector shifted = x + magic;
  const Vector f = x - (shifted - magic);
  Vector p = splat(1.53533621e-4f);
  p = p * f + splat(1.33988746e-3f);
  p = p * f + splat(9.61843736e-3f);
  p = p * f + splat(5.55033247e-2f);
  p = p * f + splat(2.40226479e-1f);
  p = p * f + splat(6.93147203e-1f);
  p = p * f + splat(1.0f);
  return (Vector)((IntVector)p + ((IntVector)shifted << 23));
}

/// tanh x to 2 ulp or so: near 0 by a polynomial (Cephes' tanhf), else by 2^x.
inline Vector tanh_of(Vector x) {
  const IntVector negative = x < Vector{};
  const Vector size = negative ? -x : x, square = x * x;
  Vector p = splat(-5.70498872745e-3f);
  p = p * square + splat(2.06390887954e-2f);
  p = p * square + splat(-5.37397155531e-2f);
  p = p * square + splat(1.33314422036e-1f);
  p = p * square + splat(-3.33332819422e-1f);
  p = p * square * x + x;
  const Vector power = exp2_of(size * splat(-2.0f * kLog2E));
  const Vector far = (splat(1.0f) - power) / (splat(1.0f) + power);
  return size < splat(0.625f) ? p : (negative ? -far : far);
}

/// Lane indices for a shuffle, as compile-time constants. If a loop filled the indices lane by
/// lane, the compiler would repeat the loop at every use.
template <typename Lanes>
struct Places;
template <int... lane>
struct Places<std::integer_sequence<int, lane...>> {
  /// Lane i of the result is lane (i + step) % LANES.
  template <int step>
  static constexpr IntVector rotated{(lane + step) % LANES...};
  /// For two rows of a matrix, `step` apart: exchanges the lanes of the off-diagonal squares.
  template <int step>
  static constexpr IntVector upper{(lane & step ? LANES + lane - step : lane)...};
  template <int step>
  static constexpr IntVector lower{(lane & step ? LANES + lane : lane + step)...};
};
using AllPlaces = Places<std::make_integer_sequence<int, LANES>>;

template <int step = LANES / 2>
inline float sum_of(Vector x) {
  if constexpr (step == 0) {
    return x[0];
  } else {
    return sum_of<step / 2>(x + __builtin_shuffle(x, AllPlaces::rotated<step>));
  }
}

template <int step = LANES / 2>
inline float max_of(Vector x) {
  if constexpr (step == 0) {
    return x[0];
  } else {
    return max_of<step / 2>(larger_of(__builtin_shuffle(x, AllPlaces::rotated<step>), x));
  }
}

/// x[i][j] -> x[j][i].
template <int step = 1>
inline void transpose(Vector (&x)[LANES]) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) {
    if (i & step) continue;
    const Vector a = x[i], b = x[i + step];
    x[i] = __builtin_shuffle(a, b, AllPlaces::upper<step>);
    x[i + step] = __builtin_shuffle(a, b, AllPlaces::lower<step>);
  }
  if constexpr (2 * step < LANES) transpose<2 * step>(x);
}

}  // namespace
}  // namespace longspan::tiles
