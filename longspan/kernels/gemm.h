// The model's gemms, by the fastest of torch's two libraries and Longspan's own tiles.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace longspan {

/// The environment variable that names the library for fp32 gemms on a CPU, instead of the fastest
/// one: mkl, onednn or tiles. For comparisons, and for tests of another processor's choice.
inline constexpr const char* kGemmVariable = "LONGSPAN_GEMM";

/// Whether the shapes of a caller's gemms recur or vary; for example, the number of an expert's
/// rows varies.
enum class GemmShapes { kRecurring, kVarying };

/// a[m, k] b[k, n], any strides, outside autograd.
///
/// MKL, which at::mm calls for fp32 on a CPU, uses AVX-512 on Intel's processors only; on AMD's,
/// MKL runs its AVX2 code at half the rate of oneDNN, which torch includes too. On AMD's processors
/// with AVX-512 (cpu_capability()), oneDNN computes fp32 gemms. On AMD's processors with AVX2
/// alone, Longspan's tiles (tiled_gemm.h) compute fp32 gemms, because torch's interface to oneDNN
/// refuses processors without AVX-512, and the tiles are a tenth faster than MKL. at::mm computes
/// everything else. Throws UserError where kGemmVariable has another value, or names a library that
/// this processor cannot run.
///
/// oneDNN compiles code for each shape that it has not seen lately, which takes about a
/// millisecond. Where shapes vary, oneDNN computes only if kGemmVariable names oneDNN.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b,
                GemmShapes shapes = GemmShapes::kRecurring);

/// True if a gemm of these bf16 matrices can return fp32. A GPU accumulates in fp32, and its
/// library rounds only on request.
bool gives_fp32(const at::Tensor& a);

/// c[m, n] = a b, written into c (any strides). Returns c. An fp32 c of bf16 matrices gets the
/// result as fp32 where gives_fp32(); else the result is rounded to bf16 first.
at::Tensor gemm_out(at::Tensor c, const at::Tensor& a, const at::Tensor& b,
                    GemmShapes shapes = GemmShapes::kRecurring);

/// c[m, n] += scale a b in place. Returns c. Where c has more precision than a and b, a GPU adds to
/// c in fp32. Otherwise the gemm is chunked by rows of c, so that no temporary is as large as c,
/// and each chunk's result is first rounded to the dtype of a and b.
at::Tensor add_gemm_(at::Tensor c, const at::Tensor& a, const at::Tensor& b, double scale = 1.0,
                     GemmShapes shapes = GemmShapes::kRecurring);

/// The name of the library that computes fp32 gemms on the CPU, for reports.
std::string gemm_library();

}  // namespace longspan
