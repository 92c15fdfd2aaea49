#include "longspan/testing/accelerator/byte_kernels.h"

#include <ATen/ATen.h>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/optim/moments_8bit.h"

namespace longspan::testing::accelerator {
namespace {

int64_t parts_of(int64_t size, int64_t part) { return (size + part - 1) / part; }

at::ScalarType dtype_of_letter(char letter) { return letter == 'b' ? at::kBFloat16 : at::kFloat; }

Compute unpack_blocks(at::ScalarType dtype, const cuda::PackedBlocks& a, Arguments& given) {
  const int64_t n = a.num_values, num_blocks = parts_of(n, cuda::kPackedBlock);
  const bool in_8_bits = a.group_scales != nullptr;
  const at::Tensor codes = given.read(a.codes, {parts_of(n, 2)}, at::kByte),
                   numbers = given.read(a.numbers, {16}, at::kFloat),
                   of_blocks =
                       given.read(a.scales, {num_blocks}, in_8_bits ? at::kByte : at::kFloat);
  at::Tensor scales = of_blocks;
  if (in_8_bits) {
    const at::Tensor groups =
        given.read(a.group_scales, {parts_of(num_blocks, cuda::kPackedScales)}, at::kFloat);
    scales =
        given.read(a.scale_numbers, {256}, at::kFloat).index_select(0, of_blocks.to(at::kInt)) *
            groups.repeat_interleave(cuda::kPackedScales).narrow(0, 0, num_blocks) +
        given.read(a.mean, {1}, at::kFloat);
  }
  const at::Tensor values = given.write(a.values, {n}, dtype);
  return [=] {
    // The first value of a byte is in the upper half.
    const at::Tensor each =
        at::stack({codes.bitwise_right_shift(4), codes.bitwise_and(15)}, 1).flatten();
    values.copy_(numbers.index_select(0, each.narrow(0, 0, n).to(at::kInt)) *
                 scales.repeat_interleave(cuda::kPackedBlock).narrow(0, 0, n));
  };
}

Compute unpack_groups(at::ScalarType dtype, const cuda::PackedGroups& a, Arguments& given) {
  const int64_t rows = a.num_rows, columns = a.num_columns;
  const at::Tensor codes = given.read(a.codes, {rows, a.row_bytes}, at::kByte),
                   scales = given.read(a.scales, {rows, a.num_groups}, at::kFloat),
                   zeros = given.read(a.zeros, {rows, a.num_groups}, at::kByte),
                   group_of = given.read(a.column_groups, {columns}, at::kInt),
                   values = given.write(a.values, {rows, columns}, dtype);
  return [=] {
    const at::Tensor each = at::stack({codes.bitwise_and(15), codes.bitwise_right_shift(4)}, 2)
                                .view({rows, -1})
                                .narrow(1, 0, columns)
                                .to(at::kFloat);
    values.copy_((each - zeros.to(at::kFloat).index_select(1, group_of)) *
                 scales.index_select(1, group_of));
  };
}

Compute update_8bit(at::ScalarType dtype, const cuda::Update8bit& a, Arguments& given) {
  const int64_t n = a.num_values, num_blocks = parts_of(n, cuda::kMomentBlock);
  const at::Tensor gradient = given.read(a.gradient, {n}, dtype),
                   values = given.change(a.values, {n}, dtype);
  const Moments8bit moments{given.change(a.first_codes, {n}, at::kByte),
                            given.change(a.first_scales, {num_blocks}, at::kFloat),
                            given.change(a.second_codes, {n}, at::kByte),
                            given.change(a.second_scales, {num_blocks}, at::kFloat)};
  const Factors8bit factors{a.beta1, a.beta2, a.epsilon, a.decay, a.rate, a.root_correction2};
  return [=] { update_8bit_on_cpu(moments, gradient, values, factors); };
}

}  // namespace

Compute byte_kernel(std::string_view name, const void* argument, Arguments& given) {
  const at::ScalarType dtype = dtype_of_letter(name.back());
  if (name.starts_with("unpack_blocks_")) {
    return unpack_blocks(dtype, as<cuda::PackedBlocks>(argument), given);
  }
  if (name.starts_with("unpack_groups_")) {
    return unpack_groups(dtype, as<cuda::PackedGroups>(argument), given);
  }
  if (name.starts_with("adamw_8bit_")) {
    return update_8bit(dtype, as<cuda::Update8bit>(argument), given);
  }
  return {};
}

}  // namespace longspan::testing::accelerator
