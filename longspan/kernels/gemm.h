// Matrix products (gemm) of the model, by the faster of the two libraries that torch brings.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace longspan {

/// Names the library that computes fp32 products on a CPU, instead of the faster one: mkl or
/// onednn, for tests (products as on another processor) and comparisons.
inline constexpr const char* kProductsVariable = "LONGSPAN_PRODUCTS";

/// a[m, k] b[k, n], any strides, outside autograd.
///
/// MKL, which at::mm calls for fp32 on a CPU, uses AVX-512 on Intel's processors only; on AMD's it
/// runs its AVX2 code at half the rate of oneDNN, which torch brings too. There, fp32 products go
/// to oneDNN, where cpu_capability() is AVX-512. Everything else is at::mm. Throws UserError where
/// kProductsVariable has another value than those it may have.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b);

/// Whether products of these matrices can be had in fp32 though they are bf16: a GPU adds them up
/// in fp32, and its library rounds only where it is told to.
bool gives_fp32(const at::Tensor& a);

/// c[m, n] = a b, written into c (any strides). Returns c. An fp32 c of bf16 matrices gets the
/// product as fp32 where gives_fp32(); else it is rounded to bf16 first.
at::Tensor gemm_out(at::Tensor c, const at::Tensor& a, const at::Tensor& b);

/// c[m, n] += scale a b in place. Returns c. Where c has more precision than a and b, a GPU adds to
/// it in fp32. Else the product is chunked by rows of c, and each chunk is rounded to their dtype
/// first. So nothing else is ever as large as c.
at::Tensor add_gemm_(at::Tensor c, const at::Tensor& a, const at::Tensor& b, double scale = 1.0);

/// The library that computes fp32 products on the CPU, by its name, for reports.
std::string gemm_library();

}  // namespace longspan
