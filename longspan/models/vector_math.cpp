#include "longspan/models/vector_math.h"

#include <cmath>
#include <limits>

namespace longspan::vector_math {
namespace {

// The bodies are forced inline so that each clone compiles them for its own instruction set.
#define LONGSPAN_INLINE __attribute__((always_inline)) inline

// std::bit_cast and std::min take references, which keeps GCC from vectorising the loops around
// them.
LONGSPAN_INLINE uint32_t bits(float x) { return __builtin_bit_cast(uint32_t, x); }
LONGSPAN_INLINE float from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

LONGSPAN_INLINE double exp_of_negative(double x) { return std::exp(x); }

/// exp(x) for x <= 0 to about 1 unit in the last place, without branches or calls, so that loops
/// over it become vector instructions. x = n ln 2 + r, |r| <= ln 2 / 2, exp(r) by its Taylor series
/// to degree 7 (remainder below 1e-8 relative), 2^n by the exponent bits. Below -87.3 the result is
/// about 1e-38 instead of a denormal.
LONGSPAN_INLINE float exp_of_negative(float x) {
  // max(x, -87.3): among negative floats the larger magnitude has the larger bits. (A comparison of
  // floats would become a branch.)
  const uint32_t lowest = bits(-87.3F), given = bits(x);
  x = from_bits(given < lowest ? given : lowest);
  // Adding 1.5 * 2^23 rounds to the nearest whole number.
  const float shifted = x * 1.44269504F + 12582912.0F;
  const float n = shifted - 12582912.0F;
  // ln 2 in two parts, the first exact in few bits, so that n * part has no rounding.
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
  const double e = std::exp(-std::fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}

LONGSPAN_INLINE float sigmoid(float x) {
  const float e = exp_of_negative(-__builtin_fabsf(x));
  const uint32_t negative = 0U - (bits(x) >> 31);  // all ones or zeros: a choice without a branch
  return from_bits((bits(e) & negative) | (bits(1.0F) & ~negative)) / (1 + e);
}

template <typename A>
LONGSPAN_INLINE A sum_of_squares_body(const A* x, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

template <typename A>
LONGSPAN_INLINE void scale_body(A* y, const A* x, const A* weight, A scale, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = weight[i] * (x[i] * scale);
}

template <typename A>
LONGSPAN_INLINE A triple_product_body(const A* dy, const A* weight, const A* x, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += dy[i] * weight[i] * x[i];
  return sum;
}

template <typename A>
LONGSPAN_INLINE void norm_gradient_body(A* dx, const A* dy, const A* weight, const A* x,
                                        const A* residual, A rstd, A factor, int64_t n) {
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
LONGSPAN_INLINE void add_scaled_product_body(A* sum, const A* dy, const A* x, A rstd, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += dy[i] * (x[i] * rstd);
}

template <typename A>
LONGSPAN_INLINE void rotate_body(A* y, const A* x, const A* cos, const A* sin, A sign, int64_t F) {
#pragma omp simd
  for (int64_t f = 0; f < F; ++f) {
    const A low = x[f], high = x[f + F], s = sign * sin[f];
    y[f] = low * cos[f] - high * s;
    y[f + F] = high * cos[f] + low * s;
  }
}

template <typename A>
LONGSPAN_INLINE void swiglu_body(A* out, const A* gate, const A* up, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

template <typename A>
LONGSPAN_INLINE void swiglu_backward_body(A* gate, A* up, A* dact, int64_t n) {
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

template <typename A>
LONGSPAN_INLINE A max_body(const A* x, int64_t n) {
  A largest = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

template <typename A>
LONGSPAN_INLINE A sum_exp_body(const A* x, A shift, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += exp_of_negative(x[i] - shift);
  return sum;
}

template <typename A>
LONGSPAN_INLINE void scaled_exp_body(A* x, A shift, A scale, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = scale * exp_of_negative(x[i] - shift);
}

}  // namespace

// Spelled out and not a template: GCC clones functions only.

LONGSPAN_CLONES float sum_of_squares(const float* x, int64_t n) {
  return sum_of_squares_body(x, n);
}
double sum_of_squares(const double* x, int64_t n) { return sum_of_squares_body(x, n); }

LONGSPAN_CLONES void scale(float* y, const float* x, const float* weight, float scale, int64_t n) {
  scale_body(y, x, weight, scale, n);
}
void scale(double* y, const double* x, const double* weight, double scale, int64_t n) {
  scale_body(y, x, weight, scale, n);
}

LONGSPAN_CLONES float triple_product(const float* dy, const float* weight, const float* x,
                                     int64_t n) {
  return triple_product_body(dy, weight, x, n);
}
double triple_product(const double* dy, const double* weight, const double* x, int64_t n) {
  return triple_product_body(dy, weight, x, n);
}

LONGSPAN_CLONES void norm_gradient(float* dx, const float* dy, const float* weight, const float* x,
                                   const float* residual, float rstd, float factor, int64_t n) {
  norm_gradient_body(dx, dy, weight, x, residual, rstd, factor, n);
}
void norm_gradient(double* dx, const double* dy, const double* weight, const double* x,
                   const double* residual, double rstd, double factor, int64_t n) {
  norm_gradient_body(dx, dy, weight, x, residual, rstd, factor, n);
}

LONGSPAN_CLONES void add_scaled_product(float* sum, const float* dy, const float* x, float rstd,
                                        int64_t n) {
  add_scaled_product_body(sum, dy, x, rstd, n);
}
void add_scaled_product(double* sum, const double* dy, const double* x, double rstd, int64_t n) {
  add_scaled_product_body(sum, dy, x, rstd, n);
}

LONGSPAN_CLONES void rotate(float* y, const float* x, const float* cos, const float* sin,
                            float sign, int64_t F) {
  rotate_body(y, x, cos, sin, sign, F);
}
void rotate(double* y, const double* x, const double* cos, const double* sin, double sign,
            int64_t F) {
  rotate_body(y, x, cos, sin, sign, F);
}

LONGSPAN_CLONES void swiglu(float* out, const float* gate, const float* up, int64_t n) {
  swiglu_body(out, gate, up, n);
}
void swiglu(double* out, const double* gate, const double* up, int64_t n) {
  swiglu_body(out, gate, up, n);
}

LONGSPAN_CLONES void swiglu_backward(float* gate, float* up, float* dact, int64_t n) {
  swiglu_backward_body(gate, up, dact, n);
}
void swiglu_backward(double* gate, double* up, double* dact, int64_t n) {
  swiglu_backward_body(gate, up, dact, n);
}

LONGSPAN_CLONES float max(const float* x, int64_t n) { return max_body(x, n); }
double max(const double* x, int64_t n) { return max_body(x, n); }

LONGSPAN_CLONES float sum_exp(const float* x, float shift, int64_t n) {
  return sum_exp_body(x, shift, n);
}
double sum_exp(const double* x, double shift, int64_t n) { return sum_exp_body(x, shift, n); }

LONGSPAN_CLONES void scaled_exp(float* x, float shift, float scale, int64_t n) {
  scaled_exp_body(x, shift, scale, n);
}
void scaled_exp(double* x, double shift, double scale, int64_t n) {
  scaled_exp_body(x, shift, scale, n);
}

LONGSPAN_CLONES void convert(float* y, const c10::BFloat16* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = from_bits(static_cast<uint32_t>(x[i].x) << 16);
}

LONGSPAN_CLONES void convert(c10::BFloat16* y, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t b = bits(x[i]);
    // To nearest, ties to even; a NaN keeps its sign and becomes quiet.
    const uint32_t rounded = (b + 0x7FFF + (b >> 16 & 1)) >> 16;
    const uint32_t quiet = (b >> 16) | 0x40;
    y[i].x = static_cast<uint16_t>((b & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
  }
}

}  // namespace longspan::vector_math
