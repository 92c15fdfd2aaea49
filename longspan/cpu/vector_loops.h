// The loops of vector_math. One .cpp for each instruction set includes this file and defines
// INSTRUCTIONS, the set's name. vector_math.cpp includes this file for the loops over doubles.
// Everything is in an unnamed namespace and calls no library template.
#pragma once

#include "longspan/cpu/vector_kernels.h"

namespace longspan::vector_math {
namespace {

#define LONGSPAN_INLINE __attribute__((always_inline)) inline

// std::bit_cast and std::min are avoided: their references keep GCC from vectorising the
// surrounding loops.
LONGSPAN_INLINE uint32_t bits(float x) { return __builtin_bit_cast(uint32_t, x); }
LONGSPAN_INLINE float from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

LONGSPAN_INLINE double exp_of_negative(double x) { return __builtin_exp(x); }

/// exp(x) for x <= 0, within about 1 ulp, without branches or calls, so that GCC vectorises loops
/// over this function. x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) by its Taylor series to degree 7
/// (relative remainder below 1e-8); 2^n by the exponent bits. From -87.3 down to -inf the result is
/// about 1e-38 instead of a denormal or 0. NaN of either sign stays NaN.
LONGSPAN_INLINE float exp_of_negative(float x) {
  // max(x, -87.3): of two negative floats, the float of larger magnitude has larger bits. (A
  // comparison of floats would become a branch.) x86 sets the sign bit of a NaN that it computes.
  // The bits of such a NaN are above the bits of -inf, so the code restores the NaN.
  const uint32_t lowest = bits(-87.3F), given = bits(x);
  const int32_t magnitude = static_cast<int32_t>(given & 0x7FFFFFFF);
  const uint32_t if_nan = -static_cast<uint32_t>(magnitude > 0x7F800000);  // all ones or zeros
  x = from_bits((given < lowest ? given : lowest) | (given & if_nan));
  // Adding 1.5 * 2^23 rounds to the nearest whole number.
  const float shifted = x * 1.44269504F + 12582912.0F;
  const float n = shifted - 12582912.0F;
  // ln 2 in two parts. The first has few bits, so n times it is exact.
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.98412698e-4F;
  p = p * r + 1.38888889e-3F;
  p = p * r + 8.33333333e-3F;
  p = p * r + 4.16666667e-2F;
  p = p * r + 1.66666667e-1F;
  p = p * r + 0.5F;
  p = p * r * r + r + 1.0F;
  return p * from_bits((bits(shifted) - 0x4B400000 + 127) << 23);
}

LONGSPAN_INLINE double sigmoid(double x) {
  const double e = __builtin_exp(-__builtin_fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}

LONGSPAN_INLINE float sigmoid(float x) {
  const float e = exp_of_negative(-__builtin_fabsf(x));
  const uint32_t negative = 0U - (bits(x) >> 31);  // all ones or zeros: selects without a branch
  return from_bits((bits(e) & negative) | (bits(1.0F) & ~negative)) / (1 + e);
}

template <typename A>
A sum_of_squares_loop(const A* x, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

template <typename A>
void scale_loop(A* y, const A* x, const A* weight, A scale, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = weight[i] * (x[i] * scale);
}

template <typename A>
A triple_product_loop(const A* dy, const A* weight, const A* x, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += dy[i] * weight[i] * x[i];
  return sum;
}

template <typename A>
void norm_gradient_loop(A* dx, const A* dy, const A* weight, const A* x, const A* residual, A rstd,
                        A factor, int64_t n) {
  if (residual) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      dx[i] = residual[i] + (rstd * dy[i] * weight[i] - x[i] * factor);
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = rstd * dy[i] * weight[i] - x[i] * factor;
  }
}

template <typename A>
void add_scaled_product_loop(A* sum, const A* dy, const A* x, A rstd, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += dy[i] * (x[i] * rstd);
}

template <typename A>
void rotate_loop(A* y, const A* x, const A* cos, const A* sin, A sign, int64_t F) {
#pragma omp simd
  for (int64_t f = 0; f < F; ++f) {
    const A low = x[f], high = x[f + F], s = sign * sin[f];
    y[f] = low * cos[f] - high * s;
    y[f + F] = high * cos[f] + low * s;
  }
}

template <typename A>
void rotate_neighbours_loop(A* y, const A* x, const A* cos, const A* sin, A sign, int64_t F) {
#pragma omp simd
  for (int64_t f = 0; f < F; ++f) {
    const A first = x[2 * f], second = x[2 * f + 1], s = sign * sin[f];
    y[2 * f] = first * cos[f] - second * s;
    y[2 * f + 1] = second * cos[f] + first * s;
  }
}

template <typename A>
void swiglu_loop(A* out, const A* gate, const A* up, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

template <typename A>
void swiglu_backward_loop(A* gate, A* up, A* dact, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const A g = gate[i], u = up[i], d = dact[i];
    const A s = sigmoid(g);
    const A silu = g * s;
    gate[i] = d * u * (s + silu * (1 - s));
    up[i] = d * silu;
    dact[i] = silu * u;
  }
}

/// gelu(x) = x sigmoid(slope x (1 + cubic x^2)), the tanh form of arXiv 1606.08415: 0.5 x (1 +
/// tanh(y)) = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename A>
struct GeluTanh {
  static constexpr A kSlope = A(1.5957691216057307117597842397375), kCubic = A(0.044715);
};

template <typename A>
void geglu_loop(A* out, const A* gate, const A* up, int64_t n) {
  constexpr A slope = GeluTanh<A>::kSlope, cubic = GeluTanh<A>::kCubic;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const A g = gate[i];
    out[i] = g * sigmoid(slope * g * (1 + cubic * g * g)) * up[i];
  }
}

template <typename A>
void geglu_backward_loop(A* gate, A* up, A* dact, int64_t n) {
  constexpr A slope = GeluTanh<A>::kSlope, cubic = GeluTanh<A>::kCubic;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const A g = gate[i], u = up[i], d = dact[i];
    const A s = sigmoid(slope * g * (1 + cubic * g * g));
    const A gelu = g * s;
    gate[i] = d * u * (s + gelu * (1 - s) * slope * (1 + 3 * cubic * g * g));
    up[i] = d * gelu;
    dact[i] = gelu * u;
  }
}

/// Clamps x to [low, high]. NaN stays NaN.
template <typename A>
LONGSPAN_INLINE A clamped(A x, A low, A high) {
  const A below = x > high ? high : x;
  return below < low ? low : below;
}

template <typename A>
void clamped_swiglu_loop(A* out, const A* gate, const A* up, A slope, A limit, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const A g = gate[i] > limit ? limit : gate[i], u = clamped(up[i], -limit, limit);
    out[i] = g * sigmoid(slope * g) * (1 + u);
  }
}

template <typename A>
void clamped_swiglu_backward_loop(A* gate, A* up, A* dact, A slope, A limit, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const A g = gate[i] > limit ? limit : gate[i], u = clamped(up[i], -limit, limit), d = dact[i];
    const A s = sigmoid(slope * g);
    const A glu = g * s;
    // A clamped number has gradient 0.
    gate[i] = gate[i] > limit ? A(0) : d * (1 + u) * (s + slope * glu * (1 - s));
    up[i] = up[i] == u ? d * glu : A(0);
    dact[i] = glu * (1 + u);
  }
}

template <typename A>
A max_loop(const A* x, int64_t n) {
  A largest = -__builtin_inf();
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// Sums values(i), i of [0, n), in double: long sums in fp32 lose numbers that are small beside the
/// sum. block(begin, m, values) writes m values. kLanes sums run in parallel.
template <typename A, typename Block>
LONGSPAN_INLINE double sum_in_double(int64_t n, Block&& block) {
  constexpr int64_t kLanes = 64, kBlock = 4 * kLanes;
  A values[kBlock];
  double sums[kLanes] = {};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t m = n - begin < kBlock ? n - begin : kBlock;
    block(begin, m, values);
    for (int64_t i = m; i < kBlock; ++i) values[i] = 0;
#pragma omp simd
    for (int64_t i = 0; i < kLanes; ++i) {
      sums[i] += (static_cast<double>(values[i]) + static_cast<double>(values[i + kLanes])) +
                 (static_cast<double>(values[i + 2 * kLanes]) +
                  static_cast<double>(values[i + 3 * kLanes]));
    }
  }
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < kLanes; ++i) sum += sums[i];
  return sum;
}

template <typename A>
double sum_exp_loop(const A* x, A shift, int64_t n) {
  return sum_in_double<A>(n, [&](int64_t begin, int64_t m, A* values) {
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) values[i] = exp_of_negative(x[begin + i] - shift);
  });
}

template <typename A>
void scaled_exp_loop(A* x, A shift, A scale, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = scale * exp_of_negative(x[i] - shift);
}

#if defined(INSTRUCTIONS)
/// The square of an fp32 number is exact in fp64, without overflow or underflow.
double precise_sum_of_squares_loop(const float* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

LONGSPAN_INLINE float float_of_bf16(uint16_t x) {
  return from_bits(static_cast<uint32_t>(x) << 16);
}

double precise_sum_of_squares_bf16_loop(const uint16_t* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const double value = float_of_bf16(x[i]);
    sum += value * value;
  }
  return sum;
}

void to_float_loop(float* y, const uint16_t* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = float_of_bf16(x[i]);
}

void to_bf16_loop(uint16_t* y, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t b = bits(x[i]);
    // Rounds to nearest, ties to even. NaN keeps its sign and becomes quiet.
    const uint32_t rounded = (b + 0x7FFF + (b >> 16 & 1)) >> 16;
    const uint32_t quiet = (b >> 16) | 0x40;
    y[i] = static_cast<uint16_t>((b & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
  }
}

constexpr Kernels kKernels{INSTRUCTIONS,
                           sum_of_squares_loop<float>,
                           scale_loop<float>,
                           triple_product_loop<float>,
                           norm_gradient_loop<float>,
                           add_scaled_product_loop<float>,
                           rotate_loop<float>,
                           rotate_neighbours_loop<float>,
                           swiglu_loop<float>,
                           swiglu_backward_loop<float>,
                           geglu_loop<float>,
                           geglu_backward_loop<float>,
                           clamped_swiglu_loop<float>,
                           clamped_swiglu_backward_loop<float>,
                           max_loop<float>,
                           sum_exp_loop<float>,
                           scaled_exp_loop<float>,
                           precise_sum_of_squares_loop,
                           precise_sum_of_squares_bf16_loop,
                           to_float_loop,
                           to_bf16_loop};
#endif

#undef LONGSPAN_INLINE

}  // namespace
}  // namespace longspan::vector_math
