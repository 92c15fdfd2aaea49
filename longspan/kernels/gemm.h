// The model's gemms, by the faster of torch's two libraries.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace longspan {

/// Environment variable that chooses the library of fp32 gemms on a CPU: mkl or onednn. For tests
/// (as on another processor) and comparisons.
inline constexpr const char* kGemmVariable = "LONGSPAN_GEMM";

/// Returns a[m, k] b[k, n], for any strides, outside autograd. Throws UserError where kGemmVariable
/// has another value than mkl or onednn.
///
/// at::mm calls MKL for fp32 on a CPU. MKL uses AVX-512 on Intel's processors only; on AMD's it
/// runs AVX2 code at half the rate of oneDNN, which torch also has. So on AMD's processors with
/// AVX-512 (cpu_capability()), oneDNN computes fp32 gemms. at::mm computes everything else.
///
/// oneDNN compiles code for each new shape, which takes about a millisecond. Where shapes do not
/// recur (VaryingShapes), it is used only if kGemmVariable names it.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b);

/// Whether a gemm of these bf16 matrices can return fp32. A GPU sums in fp32, and its library
/// rounds only where it is told to.
bool gives_fp32(const at::Tensor& a);

/// Writes a b into c[m, n], for any strides, and returns c. An fp32 c of bf16 matrices gets an fp32
/// result where gives_fp32(); else the result is first rounded to bf16.
at::Tensor gemm_out(at::Tensor c, const at::Tensor& a, const at::Tensor& b);

/// c[m, n] += scale a b in place. Returns c. Where c has more precision than a and b, a GPU adds in
/// fp32. Other devices chunk the gemm by rows of c and round each chunk's result to the dtype of a
/// and b. So no temporary is as large as c.
at::Tensor add_gemm_(at::Tensor c, const at::Tensor& a, const at::Tensor& b, double scale = 1.0);

/// Declares, for its lifetime, that shapes of this thread's gemms do not recur, like the rows of an
/// expert.
class VaryingShapes {
 public:
  VaryingShapes();
  ~VaryingShapes();
  VaryingShapes(const VaryingShapes&) = delete;
  VaryingShapes& operator=(const VaryingShapes&) = delete;

 private:
  bool before_;
};

/// Returns the name of the library of fp32 gemms on the CPU, for reports.
std::string gemm_library();

}  // namespace longspan
