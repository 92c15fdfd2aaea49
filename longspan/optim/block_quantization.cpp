#include "longspan/optim/block_quantization.h"

#include <algorithm>
#include <cmath>

namespace longspan {
namespace {

constexpr int kNumExponents = 7;

std::array<float, 256> make_values(bool is_signed) {
  std::array<float, 256> values{};
  size_t n = 0;
  values[n++] = 0.0f;
  values[n++] = 1.0f;
  for (int i = 0; i < kNumExponents; ++i) {
    // Midpoints of equal parts of [0.1, 1], twice as many for each larger exponent.
    const int num_fractions = is_signed ? 1 << i : 2 << i;
    const double exponent = std::pow(10.0, i - (kNumExponents - 1));
    for (int f = 0; f < num_fractions; ++f) {
      const double value = exponent * (0.1 + 0.9 * (f + 0.5) / num_fractions);
      values[n++] = static_cast<float>(value);
      if (is_signed) values[n++] = static_cast<float>(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

/// Midpoints between neighbouring values; a number below the midpoint goes to the lower value.
std::array<float, 255> middles_of(const std::array<float, 256>& values) {
  std::array<float, 255> middles{};
  for (size_t i = 0; i < middles.size(); ++i) middles[i] = 0.5f * (values[i] + values[i + 1]);
  return middles;
}

uint8_t nearest(const std::array<float, 255>& middles, float x) {
  uint32_t code = 0;
  for (uint32_t step = 128; step > 0; step /= 2) {
    code += x > middles[code + step - 1] ? step : 0;
  }
  return static_cast<uint8_t>(code);
}

}  // namespace

const std::array<float, 256>& dynamic_values(bool is_signed) {
  static const std::array<float, 256> with_sign = make_values(true), without = make_values(false);
  return is_signed ? with_sign : without;
}

void quantize_block(const float* x, int64_t n, bool is_signed, uint8_t* codes, float* scale) {
  static const std::array<float, 255> with_sign = middles_of(dynamic_values(true)),
                                      without = middles_of(dynamic_values(false));
  const std::array<float, 255>& middles = is_signed ? with_sign : without;
  float largest = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  }
  *scale = largest;
  if (largest == 0.0f) {
    std::fill(codes, codes + n, nearest(middles, 0.0f));
    return;
  }
  for (int64_t i = 0; i < n; ++i) codes[i] = nearest(middles, x[i] / largest);
}

void restore_block(const uint8_t* codes, float scale, int64_t n, bool is_signed, float* x) {
  const std::array<float, 256>& values = dynamic_values(is_signed);
  for (int64_t i = 0; i < n; ++i) x[i] = values[codes[i]] * scale;
}

}  // namespace longspan
