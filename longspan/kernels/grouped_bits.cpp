#include "longspan/kernels/grouped_bits.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "longspan/kernels/cuda_packed.h"

namespace longspan {
namespace {

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kCodes = 16;
/// Elements that ATen's operators unpack at once.
constexpr int64_t kChunkElements = int64_t{1} << 21;

template <typename T>
void unpack_rows(const GroupedLayout& layout, const uint8_t* bytes, T* values) {
  const auto& [num_rows, num_columns, num_groups, row_bytes, scales_begin, zeros_begin,
               numbers_begin, num_bytes] = layout;
  const auto* scales = reinterpret_cast<const float*>(bytes + scales_begin);
  const uint8_t* zeros = bytes + zeros_begin;
  const auto* group_of = reinterpret_cast<const int32_t*>(bytes + numbers_begin);
  at::parallel_for(0, num_rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    std::vector<T> of_codes(static_cast<size_t>(num_groups * kCodes));  // of one row
    T* const table = of_codes.data();
    for (int64_t row = first; row < last; ++row) {
      for (int64_t g = 0; g < num_groups; ++g) {
        const float scale = scales[row * num_groups + g];
        const int zero = zeros[row * num_groups + g];
        for (int code = 0; code < kCodes; ++code) {
          table[g * kCodes + code] = static_cast<T>(scale * static_cast<float>(code - zero));
        }
      }
      const uint8_t* codes = bytes + row * row_bytes;
      T* y = values + row * num_columns;
      for (int64_t column = 0; column < num_columns; ++column) {
        const int code = codes[column / 2] >> (4 * (column % 2)) & 15;
        y[column] = table[group_of[column] * kCodes + code];
      }
    }
  });
}

}  // namespace

void codes_from_words_out(const at::Tensor& bytes, const WordOrder& order,
                          const at::Tensor& words) {
  const int64_t num_rows = bytes.size(0), row_bytes = bytes.size(1), row_size = words.size(1);
  const auto* word = words.const_data_ptr<int32_t>();
  auto* const codes = bytes.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, num_rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t column = 0; column < 2 * row_bytes; ++column) {
      const int shift = column % 2 == 0 ? 0 : 4;
      for (int64_t row = first; row < last; ++row) {
        const uint32_t code =
            order.columns_share_words
                ? order.code(word[column / kCodesOfWord * row_size + row], column % kCodesOfWord)
                : order.code(word[column * row_size + row / kCodesOfWord], row % kCodesOfWord);
        codes[row * row_bytes + column / 2] |= static_cast<uint8_t>(code << shift);
      }
    }
  });
}

void unpack_grouped_bits_out(const at::Tensor& values, const GroupedBits& format,
                             const at::Tensor& packed) {
  const c10::NoGradGuard no_grad;
  const GroupedLayout layout(format, values.size(0), values.size(1));
  if (!packed.is_cpu()) {
    if (!cuda_rows::unpack_grouped_bits(values, layout, packed)) {
      unpack_grouped_bits_by_operators_out(values, format, packed);
    }
    return;
  }
  const auto* bytes = packed.const_data_ptr<uint8_t>();
  if (values.scalar_type() == at::kBFloat16) {
    unpack_rows(layout, bytes, values.mutable_data_ptr<at::BFloat16>());
  } else {
    unpack_rows(layout, bytes, values.mutable_data_ptr<float>());
  }
}

void unpack_grouped_bits_by_operators_out(const at::Tensor& values, const GroupedBits& format,
                                          const at::Tensor& packed) {
  const c10::NoGradGuard no_grad;
  const GroupedLayout layout(format, values.size(0), values.size(1));
  const auto& [num_rows, num_columns, num_groups, row_bytes, scales_begin, zeros_begin,
               numbers_begin, num_bytes] = layout;
  const at::Tensor group_of = packed.narrow(0, numbers_begin, 4 * num_columns).view(at::kInt);
  const int64_t most = std::max<int64_t>(1, kChunkElements / num_columns);
  for (int64_t row = 0; row < num_rows; row += most) {
    const int64_t rows = std::min(most, num_rows - row);
    const auto part = [&](int64_t begin, int64_t bytes) {
      return packed.narrow(0, begin + row * bytes, rows * bytes);
    };
    const at::Tensor codes = part(0, row_bytes).view({rows, -1});
    const at::Tensor numbers = at::stack({codes.bitwise_and(15), codes.bitwise_right_shift(4)}, -1)
                                   .view({rows, -1})
                                   .narrow(1, 0, num_columns)
                                   .to(at::kFloat);
    const at::Tensor scales = part(scales_begin, 4 * num_groups).view(at::kFloat),
                     zeros = part(zeros_begin, num_groups);
    const auto of_columns = [&](const at::Tensor& of_groups) {
      return of_groups.view({rows, num_groups}).index_select(1, group_of);
    };
    values.narrow(0, row, rows)
        .copy_(numbers.sub_(of_columns(zeros.to(at::kFloat))).mul_(of_columns(scales)));
  }
}

}  // namespace longspan
