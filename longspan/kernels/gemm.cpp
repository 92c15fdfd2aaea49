#include "longspan/kernels/gemm.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/cpu/capability.h"
#include "longspan/cpu/gemm_tiles.h"
#include "longspan/kernels/tiled_gemm.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

/// torch's own entry to oneDNN: result = beta result + alpha a b. It is exported, but no header of
/// it is shipped, so it is looked up by name; a torch that lacks it falls back to at::mm.
using OneDnnGemm = void (*)(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result,
                            float beta, float alpha);

enum class Library { kFaster, kMkl, kOneDnn, kTiles };

Library wanted_library() {
  const char* value = std::getenv(kGemmVariable);
  const std::string wanted = value == nullptr ? "" : value;
  if (wanted.empty()) return Library::kFaster;
  if (wanted == "mkl") return Library::kMkl;
  if (wanted == "onednn") return Library::kOneDnn;
  if (wanted == "tiles") return Library::kTiles;
  throw UserError(
      fmt::format("environment variable {}={}: choose mkl, onednn or tiles, or unset it",
                  kGemmVariable, wanted));
}

/// The library that is the fastest on this processor.
Library faster_library() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("amd") && cpu_capability() == CpuCapability::kAvx512)
    return Library::kOneDnn;
  if (__builtin_cpu_is("amd") && cpu_capability() == CpuCapability::kAvx2) return Library::kTiles;
#endif
  return Library::kMkl;
}

/// Longspan's own tiles; null where a library is as fast, or another one is named.
const GemmTiles* gemm_tiles() {
  static const GemmTiles* const tiles = []() -> const GemmTiles* {
    const Library wanted = wanted_library();
    const Library library = wanted == Library::kFaster ? faster_library() : wanted;
    if (library != Library::kTiles) return nullptr;
    const GemmTiles* avx2 = cpu_capability() >= CpuCapability::kAvx2 ? avx2_gemm_tiles() : nullptr;
    if (avx2 == nullptr && wanted == Library::kTiles)
      throw UserError(
          fmt::format("environment variable {}=tiles: the tiles need AVX2; choose mkl "
                      "or onednn, or unset it",
                      kGemmVariable));
    return avx2;
  }();
  return tiles;
}

OneDnnGemm find_onednn_gemm() {
  const Library wanted = wanted_library();
  if (wanted != Library::kOneDnn &&
      (wanted != Library::kFaster || faster_library() != Library::kOneDnn))
    return nullptr;
  const auto onednn = reinterpret_cast<OneDnnGemm>(
      dlsym(RTLD_DEFAULT, "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff"));
  std::string refusal = "this torch does not have it";
  if (onednn) try {
      // torch refuses where it finds no AVX-512, or is told so (ONEDNN_MAX_CPU_ISA).
      const at::Tensor one = at::ones({1, 1});
      onednn(one, one, at::empty({1, 1}), 0.0f, 1.0f);
      return onednn;
    } catch (const c10::Error& error) {
      refusal = error.what_without_backtrace();
    }
  if (wanted == Library::kFaster) return nullptr;
  throw UserError(fmt::format("environment variable {}=onednn: {}; choose mkl, or unset it",
                              kGemmVariable, refusal));
}

OneDnnGemm onednn_gemm() {
  static const OneDnnGemm onednn = find_onednn_gemm();
  return onednn;
}

/// Whether kGemmVariable demands oneDNN, for whatever shapes.
bool onednn_is_named() {
  static const bool named = wanted_library() == Library::kOneDnn;
  return named;
}

/// c = or (add) += scale a b by the tiles, where they are the fastest and take the matrices.
bool computed_by_tiles(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, double scale,
                       bool add) {
  const GemmTiles* tiles = gemm_tiles();
  const bool fits = c.scalar_type() == at::kFloat && (c.stride(0) == 1 || c.stride(1) == 1);
  if (tiles == nullptr || !fits || !tiled_gemm_takes(a, b)) return false;
  tiled_gemm_out(c, a, b, scale, add, *tiles);
  return true;
}

/// Rows of a chunk whose result is added to more precise numbers (spec/device_sizes.h): enough for
/// full speed.
constexpr int64_t kMinPartRows = 256;

bool is_fp32_of_bf16(const at::Tensor& c, const at::Tensor& a) {
  return c.scalar_type() == at::kFloat && gives_fp32(a);
}

/// Can this torch add a gemm of bf16 to fp32 numbers? The first versions of addmm with a dtype
/// want what is added to in the dtype of the matrices.
bool adds_to_fp32(const at::Tensor& like) {
  static const bool adds = [&] {
    const at::Tensor one = at::ones({1, 1}, like.options().requires_grad(false));
    at::Tensor sum = one.to(at::kFloat);
    try {
      at::addmm_outf(sum, one, one, at::kFloat, /*beta=*/1.0, /*alpha=*/1.0, sum);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }();
  return adds;
}

/// Null when at::mm is as good or the operands are not oneDNN's business.
OneDnnGemm onednn_for(const at::Tensor& a, const at::Tensor& b, GemmShapes shapes) {
  const bool fits = a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat &&
                    a.numel() > 0 && b.numel() > 0;
  if (!fits || (shapes == GemmShapes::kVarying && !onednn_is_named())) return nullptr;
  return onednn_gemm();
}

}  // namespace

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, GemmShapes shapes) {
  const bool tiled = gemm_tiles() != nullptr && tiled_gemm_takes(a, b);
  if (!tiled && !onednn_for(a, b, shapes)) return at::mm(a, b);
  return gemm_out(at::empty({a.size(0), b.size(1)}, a.options()), a, b, shapes);
}

bool gives_fp32(const at::Tensor& a) {
  return !a.is_cpu() && (a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf);
}

at::Tensor gemm_out(at::Tensor c, const at::Tensor& a, const at::Tensor& b, GemmShapes shapes) {
  if (is_fp32_of_bf16(c, a)) return at::mm_outf(a, b, at::kFloat, c);
  if (c.scalar_type() != a.scalar_type()) return c.copy_(gemm(a, b, shapes));
  if (computed_by_tiles(c, a, b, 1.0, /*add=*/false)) return c;
  if (const OneDnnGemm onednn = onednn_for(a, b, shapes)) {
    onednn(a, b, c, 0.0f, 1.0f);
  } else {
    at::mm_out(c, a, b);
  }
  return c;
}

at::Tensor add_gemm_(at::Tensor c, const at::Tensor& a, const at::Tensor& b, double scale,
                     GemmShapes shapes) {
  const bool fp32 = is_fp32_of_bf16(c, a);
  if (fp32 && adds_to_fp32(a)) return at::addmm_outf(c, a, b, at::kFloat, /*beta=*/1.0, scale, c);
  if (c.scalar_type() != a.scalar_type()) {
    // A sum of two dtypes makes a copy of the smaller one first.
    const auto row_bytes = b.size(1) * static_cast<int64_t>(b.itemsize() + c.itemsize());
    const int64_t most = device_sizes(!c.is_cpu()).gemm_bytes;
    const int64_t part = std::max(kMinPartRows, most / std::max<int64_t>(1, row_bytes));
    for (int64_t begin = 0; begin < c.size(0); begin += part) {
      const int64_t size = std::min(part, c.size(0) - begin);
      const at::Tensor part_of_a = a.narrow(0, begin, size);
      c.narrow(0, begin, size)
          .add_(fp32 ? at::mm(part_of_a, b, at::kFloat) : gemm(part_of_a, b, shapes), scale);
    }
    return c;
  }
  if (computed_by_tiles(c, a, b, scale, /*add=*/true)) return c;
  if (const OneDnnGemm onednn = onednn_for(a, b, shapes)) {
    onednn(a, b, c, 1.0f, static_cast<float>(scale));
  } else {
    c.addmm_(a, b, /*beta=*/1.0, /*alpha=*/scale);
  }
  return c;
}

std::string gemm_library() {
  if (gemm_tiles()) return "own AVX2 tiles";
  if (onednn_gemm()) return "oneDNN";
  return at::hasMKL() ? "MKL" : "torch's";
}

}  // namespace longspan
