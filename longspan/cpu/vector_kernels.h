// Interface between vector_math and its loops over floats, which are compiled once for each
// instruction set. Uses plain C++ only: a library template instantiated with AVX-512 could be the
// copy that the linker keeps for the whole program.
#pragma once

#include <stdint.h>

namespace longspan::vector_math {

/// Loops for one instruction set, as vector_math.h describes them. A bf16 number is passed as its
/// 16 bits.
struct Kernels {
  /// The instruction set of the loops: "portable", "avx2" or "avx512".
  const char* instructions;

  float (*sum_of_squares)(const float* x, int64_t n);
  void (*scale)(float* y, const float* x, const float* weight, float scale, int64_t n);
  float (*triple_product)(const float* dy, const float* weight, const float* x, int64_t n);
  void (*norm_gradient)(float* dx, const float* dy, const float* weight, const float* x,
                        const float* residual, float rstd, float factor, int64_t n);
  void (*add_scaled_product)(float* sum, const float* dy, const float* x, float rstd, int64_t n);
  void (*rotate)(float* y, const float* x, const float* cos, const float* sin, float sign,
                 int64_t F);
  void (*rotate_neighbours)(float* y, const float* x, const float* cos, const float* sin,
                            float sign, int64_t F);
  void (*swiglu)(float* out, const float* gate, const float* up, int64_t n);
  void (*swiglu_backward)(float* gate, float* up, float* dact, int64_t n);
  void (*geglu)(float* out, const float* gate, const float* up, int64_t n);
  void (*geglu_backward)(float* gate, float* up, float* dact, int64_t n);
  void (*clamped_swiglu)(float* out, const float* gate, const float* up, float slope, float limit,
                         int64_t n);
  void (*clamped_swiglu_backward)(float* gate, float* up, float* dact, float slope, float limit,
                                  int64_t n);
  float (*max)(const float* x, int64_t n);
  double (*sum_exp)(const float* x, float shift, int64_t n);
  void (*scaled_exp)(float* x, float shift, float scale, int64_t n);
  double (*precise_sum_of_squares)(const float* x, int64_t n);
  double (*precise_sum_of_squares_bf16)(const uint16_t* x, int64_t n);
  void (*to_float)(float* y, const uint16_t* x, int64_t n);
  void (*to_bf16)(uint16_t* y, const float* x, int64_t n);
};

/// avx2_kernels() and avx512_kernels() return null on processors other than x86-64.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace longspan::vector_math
