// Shared parts of GPU kernel tests: tensors and tolerances. Without a GPU, kernels run as ordinary
// functions on smaller tensors (emulated_kernels.h).
#pragma once

#include <ATen/core/Tensor.h>  // files with this header include ATen/ATen.h
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "longspan/cuda/cuda.h"
#include "longspan/cuda/kernels.h"
#include "longspan/cuda/rows/arguments.h"
#include "longspan/testing/emulated_kernels.h"

namespace longspan::testing {

inline bool has_gpu() {
  if (cuda_available()) return true;
  MESSAGE("not run: ", why_no_cuda());
  return false;
}

/// Provides kernels for the tensors of a test.
class AnyKernels {
 public:
  AnyKernels() {
    if (cuda_available()) {
      for (const cuda::Part part : cuda::kParts) REQUIRE(cuda::kernels_of(0, part) != nullptr);
    } else {
      lent_.emplace(emulated_);
    }
  }

 private:
  EmulatedKernels emulated_;
  std::optional<cuda::WithKernels> lent_;
};

inline at::TensorOptions on_gpu(at::ScalarType dtype) {
  return at::device(cuda_available() ? at::kCUDA : at::kCPU).dtype(dtype);
}

/// Returns the maximum number of elements in a test, since emulation is slow.
inline int64_t most_numbers() { return cuda_available() ? INT64_MAX : 8192; }

/// Returns memory of this shape, aligned for vector loads or not.
inline at::Tensor room(at::IntArrayRef sizes, at::ScalarType dtype, bool is_aligned) {
  const int64_t offset = is_aligned ? 0 : 1;
  return at::full({c10::multiply_integers(sizes) + offset}, NAN, on_gpu(dtype))
      .narrow(0, offset, c10::multiply_integers(sizes))
      .view(sizes);
}

inline at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype, bool is_aligned,
                         double scale = 1) {
  return room(sizes, dtype, is_aligned).copy_(at::randn(sizes, on_gpu(at::kDouble)) * scale);
}

inline at::Tensor wide(const at::Tensor& x) { return x.defined() ? x.to(at::kDouble) : x; }
inline at::Tensor fp32(const at::Tensor& x) { return x.defined() ? x.to(at::kFloat) : x; }

/// The rounding of a number to fp32, and the smallest number that kernels keep exact.
inline constexpr double kRounding = 0x1p-24, kSmallest = 0x1p-126;
/// Roundings of a sum over a row: of a thread's numbers, of a warp's lanes, of a block's warps.
inline constexpr double kRowSum = 32 + 5 + cuda::kMostWarps;

/// Roundings of a weight's gradient, a sum over rows: of a thread's rows, of a block's threads, of
/// all blocks, of which there are two a multiprocessor, and of the gradient before.
inline double roundings_of_weight_sum(int64_t num_rows) {
  const auto rounds = [](int64_t all, int64_t parts) { return (all + parts - 1) / parts; };
  const int64_t blocks =
      2 * (cuda_available() ? cuda::kernels_of(0, cuda::Part::kNormBackward)->num_multiprocessors()
                            : EmulatedKernels().num_multiprocessors());
  return static_cast<double>(rounds(num_rows, blocks) +
                             std::min<int64_t>(num_rows, cuda::kBlockThreads) +
                             rounds(blocks, cuda::kSumParts) + cuda::kSumParts + 1);
}

/// Returns the rounding to this type that follows a number's roundings in fp32.
inline double last_rounding(at::ScalarType dtype) { return dtype == at::kFloat ? 0 : 0x1.02p-8; }

/// `bound`: the allowed distance of each number, the number of its roundings times the sum of its
/// summands' sizes.
inline void check_within(const at::Tensor& actual, const at::Tensor& exact,
                         const at::Tensor& bound) {
  REQUIRE(actual.sizes() == exact.sizes());
  if (actual.numel() == 0) return;
  const double excess = ((wide(actual) - exact).abs() / (bound + kSmallest)).max().item<double>();
  CHECK(excess <= 1);  // false for NaN
}

inline double norm_of(const at::Tensor& x) { return wide(x).norm().item<double>(); }

inline constexpr int64_t kNumRows[] = {1, 3, 37, 1000}, kSizes[] = {1, 7, 100, 1536, 3584, 8192};

/// Calls f(T, D, is_aligned) for all shapes with at most `most` elements.
template <typename F>
void for_shapes(F&& f, int64_t most = most_numbers()) {
  for (const int64_t T : kNumRows) {
    for (const int64_t D : kSizes) {
      if (T * D > most) continue;
      for (const bool is_aligned : {true, false}) {
        CAPTURE(T);
        CAPTURE(D);
        CAPTURE(is_aligned);
        f(T, D, is_aligned);
      }
    }
  }
}

}  // namespace longspan::testing
