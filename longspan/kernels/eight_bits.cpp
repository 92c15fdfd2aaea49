#include "longspan/kernels/eight_bits.h"

#include <ATen/ATen.h>
#include <ATen/cpu/Utils.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "longspan/spec/eight_bit_sizes.h"
#include "longspan/spec/packed_format.h"

namespace longspan {
namespace {

constexpr float kLargestCode = 127.0f, kLeastOutlier = 6.0f;
/// Columns whose sums of products fp32 holds exactly: 1024 * 127 * 127 < 2^24.
constexpr int64_t kExactColumns = 1024;
/// Torch's product of bytes on a GPU takes more than 16 rows, and multiples of 8 otherwise.
constexpr int64_t kRowsOnGpu = 32, kMultipleOnGpu = 8;

/// Rows of a matrix that are converted at once.
int64_t rows_at_once(const at::Tensor& x, int64_t num_columns) {
  constexpr int64_t kOnCpu = int64_t{1} << 16, kOnGpu = int64_t{1} << 24;  // elements
  return std::max<int64_t>(1, (x.is_cpu() ? kOnCpu : kOnGpu) / num_columns);
}

int64_t round_up(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

/// Returns rows, which are fp32 with the precision of fp16, as codes and scales. Overwrites them.
EightBitRows rounded(const at::Tensor& x_RI) {
  const at::Tensor scales_R = x_RI.abs().amax(1);
  const at::Tensor factors_R = scales_R.reciprocal().mul_(kLargestCode);
  factors_R.masked_fill_(scales_R.eq(0), 0);  // a row of zeros has codes 0
  return {x_RI.mul_(factors_R.unsqueeze(1)).round_().to(at::kChar), scales_R};
}

at::Tensor in_half(const at::Tensor& x) { return x.to(at::kHalf).to(at::kFloat); }

at::Tensor padded(const at::Tensor& x, int64_t num_rows, int64_t num_columns) {
  if (x.size(0) == num_rows && x.size(1) == num_columns) return x;
  return at::constant_pad_nd(x, {0, num_columns - x.size(1), 0, num_rows - x.size(0)});
}

at::Tensor byte_product(const at::Tensor& codes_TI, const at::Tensor& codes_OI) {
  if (codes_OI.is_cpu()) return at::_int_mm(codes_TI, codes_OI.t());
  const int64_t T = codes_TI.size(0), O = codes_OI.size(0),
                columns = round_up(codes_OI.size(1), kMultipleOnGpu);
  return at::_int_mm(padded(codes_TI, round_up(T, kRowsOnGpu), columns),
                     padded(codes_OI, round_up(O, kMultipleOnGpu), columns).t())
      .narrow(0, 0, T)
      .narrow(1, 0, O);
}

at::Tensor float_product(const at::Tensor& codes_TI, const at::Tensor& codes_OI) {
  const int64_t I = codes_OI.size(1), O = codes_OI.size(0);
  const at::Tensor sum_TO = at::zeros({codes_TI.size(0), O}, codes_TI.options().dtype(at::kInt));
  for (int64_t begin = 0; begin < I; begin += kExactColumns) {
    const int64_t size = std::min(kExactColumns, I - begin), most = rows_at_once(codes_OI, size);
    const at::Tensor part_TJ = codes_TI.narrow(1, begin, size).to(at::kFloat);
    for (int64_t row = 0; row < O; row += most) {
      const int64_t rows = std::min(most, O - row);
      const at::Tensor part_RJ =
          codes_OI.narrow(0, row, rows).narrow(1, begin, size).to(at::kFloat);
      sum_TO.narrow(1, row, rows).add_(at::mm(part_TJ, part_RJ.t()).to(at::kInt));
    }
  }
  return sum_TO;
}

/// Tokens as codes, and where their numbers are that multiply the weight as they are.
struct Tokens {
  EightBitRows rounded;
  at::Tensor apart_TI;  // bool
};

Tokens rounded_tokens(const at::Tensor& x_TI) {
  const at::Tensor half_TI = in_half(x_TI), apart_TI = half_TI.abs().ge(kLeastOutlier);
  return {rounded(half_TI.masked_fill_(apart_TI, 0)), apart_TI};
}

/// Returns the sums of products of codes in fp32, each rounded once.
at::Tensor sums_of(const at::Tensor& codes_TI, const at::Tensor& codes_OI) {
  const bool by_bytes = !codes_TI.is_cpu() || bytes_multiply();
  return code_product(codes_TI, codes_OI, by_bytes ? CodeProduct::kBytes : CodeProduct::kFloats)
      .to(at::kFloat);
}

void product_of_some_out(const at::Tensor& y_TO, const at::Tensor& x_TI,
                         const EightBitRows& matrix) {
  const auto [tokens, apart_TI] = rounded_tokens(x_TI);
  const at::Tensor product_TO = sums_of(tokens.codes_OI, matrix.codes_OI);
  product_TO.mul_(at::mul(tokens.scales_O.unsqueeze(1), matrix.scales_O.unsqueeze(0)));
  product_TO.mul_(1.0f / (kLargestCode * kLargestCode));
  const at::Tensor columns = apart_TI.any(0).nonzero().view({-1});
  if (columns.numel() > 0) {
    const at::Tensor part_TJ =
        at::where(apart_TI, x_TI, at::zeros({}, x_TI.options())).index_select(1, columns);
    const at::Tensor weight_OJ = at::empty({y_TO.size(1), columns.numel()}, x_TI.options());
    unpack_eight_bits_out(weight_OJ, {matrix.codes_OI.index_select(1, columns), matrix.scales_O});
    product_TO.addmm_(part_TJ.to(at::kFloat), weight_OJ.to(at::kFloat).t());
  }
  y_TO.copy_(product_TO);
}

}  // namespace

at::Tensor pack_eight_bits(const at::Tensor& values_OI) {
  const c10::NoGradGuard no_grad;
  const int64_t O = values_OI.size(0), I = values_OI.size(1);
  const at::Tensor packed = at::zeros({EightBitLayout(O, I).bytes}, at::kByte);
  const EightBitRows matrix = eight_bit_rows(packed, 0, O, I);
  const int64_t most = rows_at_once(values_OI, I);
  for (int64_t row = 0; row < O; row += most) {
    const int64_t rows = std::min(most, O - row);
    const auto [codes, scales] = rounded(in_half(values_OI.narrow(0, row, rows)));
    const EightBitRows own = matrix.rows(row, rows);
    own.codes_OI.copy_(codes);
    own.scales_O.copy_(scales);
  }
  return packed;
}

EightBitRows eight_bit_rows(const at::Tensor& bytes, int64_t begin, int64_t num_rows,
                            int64_t num_columns) {
  const int64_t first = bytes.storage_offset() + begin,
                scales = first + EightBitLayout(num_rows, num_columns).scales,
                float_bytes = sizeof(float);
  EightBitRows matrix = {at::empty({0}, bytes.options().dtype(at::kChar)),
                         at::empty({0}, bytes.options().dtype(at::kFloat))};
  matrix.codes_OI.set_(bytes.storage(), first, {num_rows, num_columns}, {num_columns, 1});
  matrix.scales_O.set_(bytes.storage(), scales / float_bytes, {num_rows}, {1});
  return matrix;
}

void unpack_eight_bits_out(const at::Tensor& values_OI, const EightBitRows& matrix) {
  const c10::NoGradGuard no_grad;
  const int64_t O = values_OI.size(0), most = rows_at_once(values_OI, values_OI.size(1));
  const at::Tensor factors_O1 = matrix.scales_O.mul(1.0f / kLargestCode).unsqueeze(1);
  for (int64_t row = 0; row < O; row += most) {
    const int64_t rows = std::min(most, O - row);
    values_OI.narrow(0, row, rows)
        .copy_(at::mul(matrix.codes_OI.narrow(0, row, rows), factors_O1.narrow(0, row, rows)));
  }
}

at::Tensor code_product(const at::Tensor& codes_TI, const at::Tensor& codes_OI, CodeProduct way) {
  return way == CodeProduct::kBytes ? byte_product(codes_TI, codes_OI)
                                    : float_product(codes_TI, codes_OI);
}

bool bytes_multiply() {
  static const bool exact = [] {
    if (!at::cpu::is_avx512_vnni_supported()) return false;
    // Kernels for processors without these instructions add pairs of products in 16 bits.
    constexpr int64_t kColumns = 256;
    const at::Tensor codes = at::full({32, kColumns}, 127, at::kChar);
    return at::_int_mm(codes, codes.t()).eq(127 * 127 * kColumns).all().item<bool>();
  }();
  return exact;
}

void eight_bit_product_out(const at::Tensor& y_TO, const at::Tensor& x_TI,
                           const EightBitRows& matrix) {
  const c10::NoGradGuard no_grad;
  const int64_t T = x_TI.size(0),
                most = eight_bit_tokens(x_TI.size(1), y_TO.size(1), !x_TI.is_cpu());
  for (int64_t row = 0; row < T; row += most) {
    const int64_t rows = std::min(most, T - row);
    product_of_some_out(y_TO.narrow(0, row, rows), x_TI.narrow(0, row, rows), matrix);
  }
}

}  // namespace longspan
