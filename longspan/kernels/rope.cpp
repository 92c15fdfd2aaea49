#include "longspan/kernels/rope.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <vector>

#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

/// Returns base^(2i / H) for i < F.
at::Tensor periods(const RotaryKind& kind) {
  const auto exponents = at::arange(0, kind.dim, 2, at::kFloat) / static_cast<double>(kind.dim);
  return at::pow(at::Scalar(kind.rotary.theta), exponents);
}

/// Frequencies without scaling.
RotaryFrequencies plain(const RotaryKind& kind) { return {.inverse_F = 1.0 / periods(kind)}; }

/// Llama 3.1: stretches long wavelengths, keeps short ones, and interpolates between them.
at::Tensor llama3(const at::Tensor& inverse, const RopeScaling& rope) {
  const double context = static_cast<double>(rope.original_max_position_embeddings);
  const double longest_kept = context / rope.high_freq_factor;
  const double shortest_stretched = context / rope.low_freq_factor;
  const auto wavelength = 2 * std::numbers::pi / inverse;
  const auto stretched = at::where(wavelength > shortest_stretched, inverse / rope.factor, inverse);
  const auto smooth = (context / wavelength - rope.low_freq_factor) /
                      (rope.high_freq_factor - rope.low_freq_factor);
  const auto smoothed = (1 - smooth) * stretched / rope.factor + smooth * stretched;
  const auto between = (wavelength >= longest_kept).logical_and(wavelength <= shortest_stretched);
  return at::where(between, smoothed, stretched);
}

RotaryFrequencies yarn(const RotaryKind& kind) {
  const RopeScaling& rope = kind.rotary.scaling;
  const double dim = static_cast<double>(kind.dim);
  // Returns the dimension whose wavelength fits `num_rotations` times into the original context.
  const auto correction_dim = [&](double num_rotations) {
    return dim *
           std::log(static_cast<double>(rope.original_max_position_embeddings) /
                    (num_rotations * 2 * std::numbers::pi)) /
           (2 * std::log(kind.rotary.theta));
  };
  double low = correction_dim(rope.beta_fast), high = correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;

  const auto period = periods(kind);
  const auto ramp = at::clamp((at::arange(kind.dim / 2, at::kFloat) - low) / (high - low), 0, 1);
  const auto kept = 1 - ramp;
  const auto inverse = 1.0 / (rope.factor * period) * (1 - kept) + 1.0 / period * kept;

  double attention_factor = yarn_mscale(rope.factor, 1.0);
  if (rope.attention_factor) {
    attention_factor = *rope.attention_factor;
  } else if (rope.mscale.value_or(0) != 0 && rope.mscale_all_dim.value_or(0) != 0) {
    attention_factor =
        yarn_mscale(rope.factor, *rope.mscale) / yarn_mscale(rope.factor, *rope.mscale_all_dim);
  }
  return {inverse, attention_factor};
}

/// Phi-4-mini: each frequency has its own factor.
RotaryFrequencies longrope(const RotaryKind& kind) {
  const RopeScaling& rope = kind.rotary.scaling;
  const at::Tensor period = periods(kind);
  const auto divided = [&](const std::vector<double>& factors) {
    return 1.0 /
           (at::tensor(at::ArrayRef<double>(factors), at::TensorOptions(at::kFloat)) * period);
  };
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  return {.inverse_F = divided(rope.short_factors),
          .attention_factor = rope.attention_factor.value_or(longrope_scale(rope.factor, original)),
          .long_inverse_F = divided(rope.long_factors),
          .num_short = rope.original_max_position_embeddings};
}

RotaryFrequencies scaled(const RotaryKind& kind) {
  const RopeScaling& rope = kind.rotary.scaling;
  switch (rope.type) {
    case RopeScaling::Type::kDefault:
      return plain(kind);
    case RopeScaling::Type::kLinear:
      return {.inverse_F = plain(kind).inverse_F / rope.factor};
    case RopeScaling::Type::kLlama3:
      return {.inverse_F = llama3(plain(kind).inverse_F, rope)};
    case RopeScaling::Type::kYarn:
      return yarn(kind);
    case RopeScaling::Type::kLongrope:
      return longrope(kind);
  }
  throw std::logic_error("no such scaling of rotations");
}

/// Returns the axis of each pair, [F].
at::Tensor axes_of_pairs(const RotaryAxes& axes, int64_t num_pairs) {
  std::vector<int64_t> axis(static_cast<size_t>(num_pairs), 0);
  if (axes.interleaved) {
    for (int64_t f = 0; f < num_pairs; ++f) {
      const int64_t candidate = f % 3;
      if (f < 3 * axes.sections[static_cast<size_t>(candidate)]) {
        axis[static_cast<size_t>(f)] = candidate;
      }
    }
  } else {
    auto next = axis.begin();
    for (size_t i = 0; i < axes.sections.size(); ++i) {
      const auto left = static_cast<int64_t>(axis.end() - next);
      next = std::fill_n(next, std::min(axes.sections[i], left), static_cast<int64_t>(i));
    }
  }
  return at::tensor(at::ArrayRef<int64_t>(axis), at::TensorOptions(at::kLong));
}

/// Returns each token's position for each pair, as fp32 [T, F] or, for one axis, [T, 1].
at::Tensor positions_of_pairs(const RotaryFrequencies& frequencies,
                              const at::Tensor& positions_AT) {
  if (positions_AT.dim() == 1) return positions_AT.to(at::kFloat).unsqueeze(1);
  TORCH_CHECK(frequencies.axis_F.defined(), "rotary embedding: positions of ", positions_AT.size(0),
              " axes for a rotation by one");
  return positions_AT.index_select(0, frequencies.axis_F.to(positions_AT.device()))
      .t()
      .to(at::kFloat)
      .contiguous();  // kernels read the table row by row
}

}  // namespace

RotaryFrequencies rotary_frequencies(const RotaryKind& kind) {
  c10::NoGradGuard no_grad;
  RotaryFrequencies frequencies = scaled(kind);
  frequencies.pairs = kind.rotary.pairs;
  if (kind.rotary.axes) frequencies.axis_F = axes_of_pairs(*kind.rotary.axes, kind.dim / 2);
  return frequencies;
}

RotaryFrequencies RotaryFrequencies::on(at::Device device) const {
  RotaryFrequencies there = *this;
  there.inverse_F = inverse_F.to(device);
  if (long_inverse_F.defined()) there.long_inverse_F = long_inverse_F.to(device);
  if (axis_F.defined()) there.axis_F = axis_F.to(device);
  return there;
}

RotaryFrequencies RotaryFrequencies::of_row(int64_t num_positions) const {
  if (!long_inverse_F.defined()) return *this;
  TORCH_CHECK(num_positions > 0, "rotary embedding: a row whose number of positions is not known");
  return {.inverse_F = num_positions > num_short ? long_inverse_F : inverse_F,
          .attention_factor = attention_factor,
          .pairs = pairs,
          .axis_F = axis_F};
}

RotaryTable RotaryTable::of_rows(int64_t begin, int64_t size) const {
  return {cos_TF.narrow(0, begin, size), sin_TF.narrow(0, begin, size), pairs};
}

RotaryTable rotary_table(const RotaryFrequencies& frequencies, const at::Tensor& positions_AT,
                         at::ScalarType dtype) {
  TORCH_CHECK(!frequencies.long_inverse_F.defined(), "rotary embedding: frequencies of no row");
  c10::NoGradGuard no_grad;
  const auto inverse_F = frequencies.inverse_F.to(positions_AT.device());
  const auto angles_TF = positions_of_pairs(frequencies, positions_AT) * inverse_F;
  const auto table_dtype = arithmetic_dtype(dtype);
  RotaryTable table{angles_TF.cos(), angles_TF.sin(), frequencies.pairs};
  if (frequencies.attention_factor != 1.0) {
    table.cos_TF.mul_(frequencies.attention_factor);
    table.sin_TF.mul_(frequencies.attention_factor);
  }
  return {table.cos_TF.to(table_dtype), table.sin_TF.to(table_dtype), table.pairs};
}

}  // namespace longspan
