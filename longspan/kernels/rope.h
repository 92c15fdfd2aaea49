// Rotary position embeddings (RoFormer, arXiv 2104.09864) and their scalings. T: tokens, F: pairs
// of a head's numbers that are rotated.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/rotary_spec.h"

namespace longspan {

/// Frequencies in fp32, rounded as in transformers: at position 100,000 one ulp of a frequency
/// rotates a pair by 0.01 rad.
struct RotaryFrequencies {
  at::Tensor inverse_F;           // fp32
  double attention_factor = 1.0;  // multiplies cos and sin (YaRN, arXiv 2309.00071)
  RotaryPairs pairs = RotaryPairs::kHalves;
  /// For rows with more than `num_short` positions; undefined: inverse_F for all rows.
  at::Tensor long_inverse_F = {};
  int64_t num_short = 0;
  /// int64 [F]: the axis of positions by which each pair rotates; undefined: positions of one axis.
  at::Tensor axis_F = {};

  RotaryFrequencies on(at::Device device) const;
  /// Returns the frequencies of a row with this many positions (Batch::num_positions).
  RotaryFrequencies of_row(int64_t num_positions) const;
};
RotaryFrequencies rotary_frequencies(const RotaryKind& kind);

/// Angles of a row, made once and used by every layer. fp32, or fp64 for fp64 models.
struct RotaryTable {
  at::Tensor cos_TF, sin_TF;
  RotaryPairs pairs = RotaryPairs::kHalves;

  /// Returns the angles of rows [begin, begin + size).
  RotaryTable of_rows(int64_t begin, int64_t size) const;
};
/// Makes the table. `frequencies`: the row's frequencies. Positions have one axis, or three axes
/// with RotarySpec::axes: [A, T].
RotaryTable rotary_table(const RotaryFrequencies& frequencies, const at::Tensor& positions_AT,
                         at::ScalarType dtype);

}  // namespace longspan
