#include "longspan/checkpoint/grouped_codes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>

#include "longspan/base/user_error.h"
#include "longspan/kernels/grouped_bits.h"
#include "longspan/models/grouped_format.h"

namespace longspan {
namespace {

/// One more than the largest code.
constexpr uint32_t kCodes = 16;

void require_groups(const GroupedTensors& tensors, int64_t num_groups) {
  const auto* groups = tensors.groups.const_data_ptr<int32_t>();
  for (int64_t column = 0; column < tensors.groups.numel(); ++column) {
    if (groups[column] >= 0 && groups[column] < num_groups) continue;
    throw UserError(fmt::format(
        "{} has column {} in group {}, but {} groups. The file is damaged: download it again.",
        tensors.name, column, groups[column], num_groups));
  }
}

}  // namespace

GroupedShapes grouped_shapes(const StoredNumbers& stored, int64_t num_rows, int64_t num_columns) {
  const int64_t num_groups = GroupedLayout(stored.packed.format, num_rows, num_columns).num_groups;
  GroupedShapes shapes{.codes = {num_columns, num_rows / kCodesOfWord},
                       .zeros = {num_groups, num_rows / kCodesOfWord},
                       .scales = {num_groups, num_rows},
                       .groups = {num_columns}};
  if (stored.grouped->order.columns_share_words)
    shapes.codes = {num_columns / kCodesOfWord, num_rows};
  return shapes;
}

at::Tensor pack_codes(const StoredNumbers& stored, int64_t num_rows, int64_t num_columns,
                      const GroupedTensors& tensors) {
  const GroupedFormat& format = *stored.grouped;
  const GroupedLayout layout(stored.packed.format, num_rows, num_columns);
  const int64_t num_groups = layout.num_groups;
  if (tensors.groups.defined()) require_groups(tensors, num_groups);
  if (!tensors.scales.isfinite().all().item<bool>()) {
    throw UserError(
        fmt::format("{} has scales that are not finite. Use a model without such "
                    "numbers.",
                    tensors.name));
  }
  at::Tensor packed = at::zeros({layout.bytes}, at::kByte);
  auto* bytes = packed.mutable_data_ptr<uint8_t>();
  codes_from_words_out(packed.narrow(0, 0, num_rows * layout.row_bytes).view({num_rows, -1}),
                       format.order, tensors.codes);
  const at::Tensor scales = tensors.scales.t().contiguous();
  std::memcpy(bytes + layout.scales, scales.const_data_ptr(), scales.nbytes());
  const auto* zeros = tensors.zeros.const_data_ptr<int32_t>();
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t group = 0; group < num_groups; ++group) {
      const int32_t word = zeros[group * tensors.zeros.size(1) + row / kCodesOfWord];
      const uint32_t zero = format.order.code(word, row % kCodesOfWord);
      bytes[layout.zeros + row * num_groups + group] =
          static_cast<uint8_t>((zero + static_cast<uint32_t>(stored.zero_offset)) % kCodes);
    }
  }
  auto* groups = reinterpret_cast<int32_t*>(bytes + layout.groups);
  if (tensors.groups.defined()) {
    std::memcpy(groups, tensors.groups.const_data_ptr(), tensors.groups.nbytes());
  } else {
    const int64_t given = stored.packed.format.group_size, size = given > 0 ? given : num_columns;
    for (int64_t column = 0; column < num_columns; ++column) {
      groups[column] = static_cast<int32_t>(column / size);
    }
  }
  return packed;
}

}  // namespace longspan
