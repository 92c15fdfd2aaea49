// The order of 4-bit codes in the words of a matrix's tensor, as data. No torch.
#pragma once

#include <array>
#include <cstdint>

namespace longspan {

/// Codes in a word of int32.
inline constexpr int64_t kCodesOfWord = 8;

struct WordOrder {
  /// The codes of a word are of one row and neighbouring columns of the matrix, and the words form
  /// the transpose [columns / 8, rows]; false: they are of one column and neighbouring rows,
  /// [columns, rows / 8].
  bool columns_share_words;
  /// Code i of a word is at the bits from 4 * places[i] on.
  std::array<int, kCodesOfWord> places;

  uint32_t code(int32_t word, int64_t number) const {
    return static_cast<uint32_t>(word) >> (4 * places[static_cast<size_t>(number)]) & 15;
  }
};

}  // namespace longspan
