// Loops over contiguous numbers that the compiler turns into vector instructions. On x86-64 each is
// compiled for several instruction sets and the machine's best is chosen when the program starts.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace longspan::vector_math {

// Sanitizers run before the choice can be made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LONGSPAN_CLONES \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define LONGSPAN_CLONES
#endif

// Each operation for float (fast) and double (for fp64 checks).
float sum_of_squares(const float* x, int64_t n);
double sum_of_squares(const double* x, int64_t n);

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

/// One head: y[f] = x[f] cos - x[f + F] sin, y[f + F] = x[f + F] cos + x[f] sin; y may be x.
void rotate(float* y, const float* x, const float* cos, const float* sin, float sign, int64_t F);
void rotate(double* y, const double* x, const double* cos, const double* sin, double sign,
            int64_t F);

/// out = silu(gate) * up; out may be gate or up.
void swiglu(float* out, const float* gate, const float* up, int64_t n);
void swiglu(double* out, const double* gate, const double* up, int64_t n);

/// (gate, up, dact) -> (dgate, dup, act) in place.
void swiglu_backward(float* gate, float* up, float* dact, int64_t n);
void swiglu_backward(double* gate, double* up, double* dact, int64_t n);

float max(const float* x, int64_t n);
double max(const double* x, int64_t n);

/// sum of exp(x - shift), for shift >= x.
float sum_exp(const float* x, float shift, int64_t n);
double sum_exp(const double* x, double shift, int64_t n);

/// x = scale * exp(x - shift), for shift >= x.
void scaled_exp(float* x, float shift, float scale, int64_t n);
void scaled_exp(double* x, double shift, double scale, int64_t n);

void convert(float* y, const c10::BFloat16* x, int64_t n);
void convert(c10::BFloat16* y, const float* x, int64_t n);

}  // namespace longspan::vector_math
