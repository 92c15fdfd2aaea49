// Formats in which frozen matrices are held in 4 or 8 bits, as data. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "longspan/spec/four_bits.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// An element is scale * (code - zero), where a row and a group of columns share a scale and a zero
/// (GPTQ, arXiv 2210.17323; AWQ, arXiv 2306.00978).
struct GroupedBits {
  int64_t group_size = 128;  ///< columns of a group; at most 0: all columns

  bool operator==(const GroupedBits&) const = default;
};

/// The places of the parts of a packed matrix [num_rows, num_columns], in bytes from its begin.
/// Parts begin at multiples of 16 bytes, and all but the last have a row of the matrix in each row.
struct GroupedLayout {
  GroupedLayout(const GroupedBits& format, int64_t num_rows, int64_t num_columns);

  int64_t num_rows, num_columns, num_groups;
  int64_t row_bytes;  ///< of codes: two in a byte, the first in the lower half
  int64_t scales;     ///< [num_rows, num_groups] numbers in fp32
  int64_t zeros;      ///< [num_rows, num_groups] bytes
  int64_t groups;     ///< [num_columns] numbers in int32: the group of a column
  int64_t bytes;      ///< of all parts
};

/// An element is scale * code / 127 with a code of 8 bits, where a row shares a scale (LLM.int8,
/// arXiv 2208.07339). A product with the matrix takes the codes themselves.
struct EightBits {
  bool operator==(const EightBits&) const = default;
};

/// The places of the parts of a packed matrix [num_rows, num_columns], in bytes from its begin.
/// Parts begin at multiples of 16 bytes, and have a row of the matrix in each row.
struct EightBitLayout {
  EightBitLayout(int64_t num_rows, int64_t num_columns);

  int64_t scales;  ///< after the codes: num_rows numbers in fp32
  int64_t bytes;   ///< of all parts
};

using PackedFormat = std::variant<FourBits, GroupedBits, EightBits>;

/// True if products with a matrix take its codes, beside the unpacked matrix.
inline bool multiplies_codes(const PackedFormat& format) {
  return std::holds_alternative<EightBits>(format);
}

/// Endings that the names of a matrix's codes and scales have, after the name of the matrix.
inline constexpr std::string_view kCodesEnding = ".codes", kScalesEnding = ".scales";

/// Returns the bytes of a packed matrix.
int64_t packed_bytes(const PackedFormat& format, int64_t num_rows, int64_t num_columns);

/// The matrices that a model's folder holds in 4 bits.
struct FolderBits {
  GroupedBits format;
  /// Linear layers that the folder holds unquantized: a full name, or the first, last or other
  /// consecutive parts of one.
  std::vector<std::string> kept = {};
  /// The last parts of the names of all quantized linear layers; empty: any.
  std::vector<std::string> only = {};

  /// True if the folder holds this parameter in 4 bits.
  bool holds(const ParameterSpec& parameter) const;
  bool operator==(const FolderBits&) const = default;
};

/// Ending of the name of a linear layer's matrix.
inline constexpr std::string_view kWeightEnding = ".weight";

}  // namespace longspan
