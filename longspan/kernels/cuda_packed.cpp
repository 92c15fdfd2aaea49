#include "longspan/kernels/cuda_packed.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/cuda_launch.h"

namespace longspan::cuda_rows {
namespace {

static_assert(cuda::kPackedBlock == kFourBitBlock && cuda::kPackedScales == kFourBitScales);

/// Whether the kernels read these bytes, whose parts have numbers in fp32, and write these values.
bool fits(const at::Tensor& values, const at::Tensor& packed) {
  return fit({&values}) && packed.is_contiguous() && packed.device() == values.device() &&
         reinterpret_cast<uintptr_t>(packed.const_data_ptr()) % sizeof(float) == 0;
}

/// Values of a thread: 8, whose codes are one word, where they are aligned.
int64_t values_of_thread(const at::Tensor& values) {
  constexpr int64_t kVector = 8;
  return aligned({&values}, kVector) ? kVector : 1;
}

Launch launch_of(int64_t threads) {
  return {.blocks_x = blocks_of(threads, cuda::kBlockThreads), .threads_x = cuda::kBlockThreads};
}

}  // namespace

bool unpack_four_bits(const at::Tensor& values, const FourBitLayout& layout,
                      const at::Tensor& packed, const at::Tensor& numbers,
                      const at::Tensor& scale_numbers) {
  if (!fits(values, packed)) return false;
  Kernels* const kernels = kernels_of(values, Part::kPacked);
  if (kernels == nullptr) return false;
  if (layout.num_elements == 0) return true;
  const auto* bytes = packed.const_data_ptr<uint8_t>();
  const bool in_8_bits = layout.num_groups > 0;
  const int64_t vector = values_of_thread(values);
  kernels->launch(
      fmt::format("unpack_blocks_{}_v{}", letter(values), vector),
      launch_of((layout.num_elements + vector - 1) / vector),
      cuda::PackedBlocks{
          .codes = bytes,
          .values = values.mutable_data_ptr(),
          .scales = bytes + layout.scales,
          .group_scales =
              in_8_bits ? reinterpret_cast<const float*>(bytes + layout.group_scales) : nullptr,
          .mean = in_8_bits ? reinterpret_cast<const float*>(bytes + layout.mean) : nullptr,
          .numbers = numbers.const_data_ptr<float>(),
          .scale_numbers = scale_numbers.const_data_ptr<float>(),
          .num_values = layout.num_elements});
  return true;
}

bool unpack_grouped_bits(const at::Tensor& values, const GroupedLayout& layout,
                         const at::Tensor& packed) {
  if (!fits(values, packed)) return false;
  Kernels* const kernels = kernels_of(values, Part::kPacked);
  if (kernels == nullptr) return false;
  if (values.numel() == 0) return true;
  const auto* bytes = packed.const_data_ptr<uint8_t>();
  const auto& [num_rows, num_columns, num_groups, row_bytes, scales_begin, zeros_begin,
               numbers_begin, num_bytes] = layout;
  // A word of codes lies in one row.
  int64_t vector = values_of_thread(values);
  if (num_columns % vector != 0) vector = 1;
  kernels->launch(
      fmt::format("unpack_groups_{}_v{}", letter(values), vector),
      launch_of(num_rows * (num_columns / vector)),
      cuda::PackedGroups{.codes = bytes,
                         .values = values.mutable_data_ptr(),
                         .scales = reinterpret_cast<const float*>(bytes + scales_begin),
                         .zeros = bytes + zeros_begin,
                         .column_groups = reinterpret_cast<const int*>(bytes + numbers_begin),
                         .num_rows = num_rows,
                         .num_columns = num_columns,
                         .num_groups = num_groups,
                         .row_bytes = row_bytes});
  return true;
}

}  // namespace longspan::cuda_rows
