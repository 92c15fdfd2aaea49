#include "longspan/spec/four_bits.h"

namespace longspan {
namespace {

constexpr int64_t kAlignment = 16;

int64_t parts_of(int64_t size, int64_t part) { return (size + part - 1) / part; }
int64_t aligned(int64_t bytes) { return parts_of(bytes, kAlignment) * kAlignment; }

}  // namespace

FourBitLayout::FourBitLayout(const FourBits& format, int64_t elements)
    : num_elements(elements),
      num_blocks(parts_of(elements, kFourBitBlock)),
      num_groups(format.double_quantization ? parts_of(num_blocks, kFourBitScales) : 0),
      scales(aligned(parts_of(elements, 2))),
      group_scales(aligned(scales + num_blocks * (format.double_quantization ? 1 : 4))),
      mean(aligned(group_scales + 4 * num_groups)),
      bytes(mean + (format.double_quantization ? kAlignment : 0)) {}

bool is_quantized_matrix(const ParameterSpec& parameter) {
  return parameter.role == ParameterRole::kProjection && !parameter.expert;
}

}  // namespace longspan
