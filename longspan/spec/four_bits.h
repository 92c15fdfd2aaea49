// Matrices in 4 bits, in the format of bitsandbytes (QLoRA, arXiv 2305.14314), as data. No torch.
#pragma once

#include <cstdint>

#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// The 16 values of a code.
enum class FourBitValues {
  kNf4,  ///< quantiles of the normal distribution
  kFp4,  ///< a sign, two bits of exponent and one bit of fraction
};

/// Elements that share a scale, and scales that share a scale of their own.
inline constexpr int64_t kFourBitBlock = 64, kFourBitScales = 256;

struct FourBits {
  FourBitValues values = FourBitValues::kNf4;
  /// Scales are stored in 8 bits, less their mean.
  bool double_quantization = true;

  bool operator==(const FourBits&) const = default;
};

/// The places of the parts of a packed matrix, in bytes from its begin. Parts begin at multiples of
/// 16 bytes.
struct FourBitLayout {
  FourBitLayout(const FourBits& format, int64_t num_elements);

  int64_t num_elements, num_blocks;
  int64_t num_groups;    ///< of scales with a scale of their own; 0: scales are stored in fp32
  int64_t scales;        ///< num_blocks numbers, in 8 bits or in fp32
  int64_t group_scales;  ///< num_groups numbers in fp32
  int64_t mean;          ///< of the scales, in fp32
  int64_t bytes;         ///< of all parts
};

/// True if a run with quantized weights quantizes this parameter: the matrices of linear layers
/// within layers, as in transformers. The head, the embedding and norms stay as they are.
bool is_quantized_matrix(const ParameterSpec& parameter);

}  // namespace longspan
