#include "longspan/cpu/vector_math.h"

#include <fmt/format.h>

#include <stdexcept>

#include "longspan/cpu/vector_loops.h"

namespace longspan::vector_math {
namespace {

const Kernels* find_kernels(CpuCapability capability) {
  switch (capability) {
    case CpuCapability::kPortable:
      return portable_kernels();
    case CpuCapability::kAvx2:
      return avx2_kernels();
    case CpuCapability::kAvx512:
      return avx512_kernels();
  }
  return nullptr;
}

const uint16_t* bits_of(const c10::BFloat16* x) { return reinterpret_cast<const uint16_t*>(x); }
uint16_t* bits_of(c10::BFloat16* x) { return reinterpret_cast<uint16_t*>(x); }

}  // namespace

const Kernels& kernels_of(CpuCapability capability) {
  const Kernels* found = find_kernels(capability);
  if (found == nullptr) {
    throw std::logic_error(fmt::format("built without loops for {}", name_of(capability)));
  }
  return *found;
}

const Kernels& kernels() {
  static const Kernels& chosen = kernels_of(cpu_capability());
  return chosen;
}

float sum_of_squares(const float* x, int64_t n) { return kernels().sum_of_squares(x, n); }
double sum_of_squares(const double* x, int64_t n) { return sum_of_squares_loop(x, n); }

double precise_sum_of_squares(const float* x, int64_t n) {
  return kernels().precise_sum_of_squares(x, n);
}
double precise_sum_of_squares(const double* x, int64_t n) { return sum_of_squares_loop(x, n); }
double precise_sum_of_squares(const c10::BFloat16* x, int64_t n) {
  return kernels().precise_sum_of_squares_bf16(bits_of(x), n);
}

void scale(float* y, const float* x, const float* weight, float scale, int64_t n) {
  kernels().scale(y, x, weight, scale, n);
}
void scale(double* y, const double* x, const double* weight, double scale, int64_t n) {
  scale_loop(y, x, weight, scale, n);
}

float triple_product(const float* dy, const float* weight, const float* x, int64_t n) {
  return kernels().triple_product(dy, weight, x, n);
}
double triple_product(const double* dy, const double* weight, const double* x, int64_t n) {
  return triple_product_loop(dy, weight, x, n);
}

void norm_gradient(float* dx, const float* dy, const float* weight, const float* x,
                   const float* residual, float rstd, float factor, int64_t n) {
  kernels().norm_gradient(dx, dy, weight, x, residual, rstd, factor, n);
}
void norm_gradient(double* dx, const double* dy, const double* weight, const double* x,
                   const double* residual, double rstd, double factor, int64_t n) {
  norm_gradient_loop(dx, dy, weight, x, residual, rstd, factor, n);
}

void add_scaled_product(float* sum, const float* dy, const float* x, float rstd, int64_t n) {
  kernels().add_scaled_product(sum, dy, x, rstd, n);
}
void add_scaled_product(double* sum, const double* dy, const double* x, double rstd, int64_t n) {
  add_scaled_product_loop(sum, dy, x, rstd, n);
}

void rotate(float* y, const float* x, const float* cos, const float* sin, float sign, int64_t F) {
  kernels().rotate(y, x, cos, sin, sign, F);
}
void rotate(double* y, const double* x, const double* cos, const double* sin, double sign,
            int64_t F) {
  rotate_loop(y, x, cos, sin, sign, F);
}

void rotate_neighbours(float* y, const float* x, const float* cos, const float* sin, float sign,
                       int64_t F) {
  kernels().rotate_neighbours(y, x, cos, sin, sign, F);
}
void rotate_neighbours(double* y, const double* x, const double* cos, const double* sin,
                       double sign, int64_t F) {
  rotate_neighbours_loop(y, x, cos, sin, sign, F);
}

void swiglu(float* out, const float* gate, const float* up, int64_t n) {
  kernels().swiglu(out, gate, up, n);
}
void swiglu(double* out, const double* gate, const double* up, int64_t n) {
  swiglu_loop(out, gate, up, n);
}

void swiglu_backward(float* gate, float* up, float* dact, int64_t n) {
  kernels().swiglu_backward(gate, up, dact, n);
}
void swiglu_backward(double* gate, double* up, double* dact, int64_t n) {
  swiglu_backward_loop(gate, up, dact, n);
}

void geglu(float* out, const float* gate, const float* up, int64_t n) {
  kernels().geglu(out, gate, up, n);
}
void geglu(double* out, const double* gate, const double* up, int64_t n) {
  geglu_loop(out, gate, up, n);
}

void geglu_backward(float* gate, float* up, float* dact, int64_t n) {
  kernels().geglu_backward(gate, up, dact, n);
}
void geglu_backward(double* gate, double* up, double* dact, int64_t n) {
  geglu_backward_loop(gate, up, dact, n);
}

void clamped_swiglu(float* out, const float* gate, const float* up, float slope, float limit,
                    int64_t n) {
  kernels().clamped_swiglu(out, gate, up, slope, limit, n);
}
void clamped_swiglu(double* out, const double* gate, const double* up, double slope, double limit,
                    int64_t n) {
  clamped_swiglu_loop(out, gate, up, slope, limit, n);
}

void clamped_swiglu_backward(float* gate, float* up, float* dact, float slope, float limit,
                             int64_t n) {
  kernels().clamped_swiglu_backward(gate, up, dact, slope, limit, n);
}
void clamped_swiglu_backward(double* gate, double* up, double* dact, double slope, double limit,
                             int64_t n) {
  clamped_swiglu_backward_loop(gate, up, dact, slope, limit, n);
}

float max(const float* x, int64_t n) { return kernels().max(x, n); }
double max(const double* x, int64_t n) { return max_loop(x, n); }

double sum_exp(const float* x, float shift, int64_t n) { return kernels().sum_exp(x, shift, n); }
double sum_exp(const double* x, double shift, int64_t n) { return sum_exp_loop(x, shift, n); }

void scaled_exp(float* x, float shift, float scale, int64_t n) {
  kernels().scaled_exp(x, shift, scale, n);
}
void scaled_exp(double* x, double shift, double scale, int64_t n) {
  scaled_exp_loop(x, shift, scale, n);
}

void convert(float* y, const c10::BFloat16* x, int64_t n) { kernels().to_float(y, bits_of(x), n); }
void convert(c10::BFloat16* y, const float* x, int64_t n) { kernels().to_bf16(bits_of(y), x, n); }

}  // namespace longspan::vector_math
