#include "longspan/optim/cuda_adamw_8bit.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/cuda_launch.h"
#include "longspan/optim/block_quantization.h"

namespace longspan::cuda_rows {
namespace {

static_assert(cuda::kMomentBlock == kQuantizationBlock);

/// Elements of one memory access; their codes are read at once.
int64_t vector_of(const Moments8bit& moments, const at::Tensor& gradient,
                  const at::Tensor& values) {
  const int64_t vector = widest_vector({&values});
  const auto are_aligned = [&](const at::Tensor& codes) {
    return reinterpret_cast<uintptr_t>(codes.const_data_ptr()) % static_cast<uintptr_t>(vector) ==
           0;
  };
  return aligned({&values, &gradient}, vector) && are_aligned(moments.first_codes) &&
                 are_aligned(moments.second_codes)
             ? vector
             : 1;
}

}  // namespace

bool update_8bit(const Moments8bit& moments, const at::Tensor& gradient_n,
                 const at::Tensor& values_n, const Factors8bit& factors) {
  if (!fit({&values_n, &gradient_n}) || gradient_n.scalar_type() != values_n.scalar_type()) {
    return false;
  }
  Kernels* const kernels = kernels_of(values_n, Part::kAdamW8bit);
  if (kernels == nullptr) return false;
  if (values_n.numel() == 0) return true;
  cuda::Update8bit argument{.gradient = gradient_n.const_data_ptr(),
                            .values = values_n.mutable_data_ptr(),
                            .first_codes = moments.first_codes.mutable_data_ptr<uint8_t>(),
                            .second_codes = moments.second_codes.mutable_data_ptr<uint8_t>(),
                            .first_scales = moments.first_scales.mutable_data_ptr<float>(),
                            .second_scales = moments.second_scales.mutable_data_ptr<float>(),
                            .num_values = values_n.numel(),
                            .beta1 = factors.beta1,
                            .beta2 = factors.beta2,
                            .epsilon = factors.epsilon,
                            .decay = factors.decay,
                            .rate = factors.rate,
                            .root_correction2 = factors.root_correction2,
                            .first_numbers = {},
                            .second_numbers = {}};
  std::ranges::copy(dynamic_values(/*is_signed=*/true), argument.first_numbers);
  std::ranges::copy(dynamic_values(/*is_signed=*/false), argument.second_numbers);
  // Each warp updates a block of elements at a time. A block of threads loops, since it first makes
  // its tables.
  constexpr int64_t kBlocksOfMultiprocessor = 8, kWarps = cuda::kBlockThreads / 32;
  const int64_t most = kBlocksOfMultiprocessor * kernels->num_multiprocessors();
  const int64_t needed = blocks_of(values_n.numel(), kQuantizationBlock * kWarps);
  kernels->launch(
      fmt::format("adamw_8bit_{}_v{}", letter(values_n), vector_of(moments, gradient_n, values_n)),
      Launch{.blocks_x = static_cast<unsigned>(std::min(most, needed)),
             .threads_x = cuda::kBlockThreads},
      argument);
  return true;
}

}  // namespace longspan::cuda_rows
