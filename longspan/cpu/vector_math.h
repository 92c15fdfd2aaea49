// Loops over contiguous numbers that the compiler vectorises. Loops over floats are compiled for
// several instruction sets (capability.h), and each call runs the loops for cpu_capability(). Loops
// over doubles, which only fp64 checks use, are compiled once.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "longspan/cpu/capability.h"
#include "longspan/cpu/vector_kernels.h"

namespace longspan::vector_math {

/// Returns the loops over floats for one capability, for tests and comparisons. The processor must
/// have this capability.
const Kernels& kernels_of(CpuCapability capability);

/// Returns the loops that the functions below run.
const Kernels& kernels();

// Each operation exists for float (fast) and double (for fp64 checks).
float sum_of_squares(const float* x, int64_t n);
double sum_of_squares(const double* x, int64_t n);

/// As sum_of_squares(), with a sum in double, for any n. bf16 numbers are exact in double.
double precise_sum_of_squares(const float* x, int64_t n);
double precise_sum_of_squares(const double* x, int64_t n);
double precise_sum_of_squares(const c10::BFloat16* x, int64_t n);

/// y = weight * x * scale.
void scale(float* y, const float* x, const float* weight, float scale, int64_t n);
void scale(double* y, const double* x, const double* weight, double scale, int64_t n);

/// sum of dy * weight * x.
float triple_product(const float* dy, const float* weight, const float* x, int64_t n);
double triple_product(const double* dy, const double* weight, const double* x, int64_t n);

/// dx = residual + rstd * dy * weight - x * factor; residual may be null.
void norm_gradient(float* dx, const float* dy, const float* weight, const float* x,
                   const float* residual, float rstd, float factor, int64_t n);
void norm_gradient(double* dx, const double* dy, const double* weight, const double* x,
                   const double* residual, double rstd, double factor, int64_t n);

/// sum += dy * x * rstd.
void add_scaled_product(float* sum, const float* dy, const float* x, float rstd, int64_t n);
void add_scaled_product(double* sum, const double* dy, const double* x, double rstd, int64_t n);

/// Rotates one head: y[f] = x[f] cos - x[f + F] sin, y[f + F] = x[f + F] cos + x[f] sin. y may be
/// x.
void rotate(float* y, const float* x, const float* cos, const float* sin, float sign, int64_t F);
void rotate(double* y, const double* x, const double* cos, const double* sin, double sign,
            int64_t F);
/// As rotate(), for pairs (x[2f], x[2f + 1]).
void rotate_neighbours(float* y, const float* x, const float* cos, const float* sin, float sign,
                       int64_t F);
void rotate_neighbours(double* y, const double* x, const double* cos, const double* sin,
                       double sign, int64_t F);

/// out = silu(gate) * up; out may be gate or up.
void swiglu(float* out, const float* gate, const float* up, int64_t n);
void swiglu(double* out, const double* gate, const double* up, int64_t n);

/// Replaces (gate, up, dact) by (dgate, dup, act) in place.
void swiglu_backward(float* gate, float* up, float* dact, int64_t n);
void swiglu_backward(double* gate, double* up, double* dact, int64_t n);

/// As swiglu() and swiglu_backward(), for gelu(gate) * up, with the tanh form of gelu.
void geglu(float* out, const float* gate, const float* up, int64_t n);
void geglu(double* out, const double* gate, const double* up, int64_t n);
void geglu_backward(float* gate, float* up, float* dact, int64_t n);
void geglu_backward(double* gate, double* up, double* dact, int64_t n);

/// As swiglu() and swiglu_backward(), for g sigmoid(slope g) (1 + u), with g = min(gate, limit) and
/// u = up clamped to [-limit, limit]. Clamped numbers have gradient 0.
void clamped_swiglu(float* out, const float* gate, const float* up, float slope, float limit,
                    int64_t n);
void clamped_swiglu(double* out, const double* gate, const double* up, double slope, double limit,
                    int64_t n);
void clamped_swiglu_backward(float* gate, float* up, float* dact, float slope, float limit,
                             int64_t n);
void clamped_swiglu_backward(double* gate, double* up, double* dact, double slope, double limit,
                             int64_t n);

/// The maximum, without NaNs; -inf where all are NaN.
float max(const float* x, int64_t n);
double max(const double* x, int64_t n);

/// sum of exp(x - shift) in double, for shift >= x. NaN where any x is NaN, or where x and shift
/// are the same infinity.
double sum_exp(const float* x, float shift, int64_t n);
double sum_exp(const double* x, double shift, int64_t n);

/// x = scale * exp(x - shift), for shift >= x; NaN as above.
void scaled_exp(float* x, float shift, float scale, int64_t n);
void scaled_exp(double* x, double shift, double scale, int64_t n);

void convert(float* y, const c10::BFloat16* x, int64_t n);
void convert(c10::BFloat16* y, const float* x, int64_t n);

}  // namespace longspan::vector_math
