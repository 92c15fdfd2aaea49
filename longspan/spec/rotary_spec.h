// Rotation of queries and keys by their positions (RoFormer, arXiv 2104.09864), as data.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan {

/// rope_scaling / rope_parameters of config.json.
struct RopeScaling {
  enum class Type {
    kDefault,   ///< no scaling
    kLinear,    ///< all positions are divided by the factor (arXiv 2306.15595)
    kLlama3,    ///< only long wavelengths are stretched (Llama 3.1, arXiv 2407.21783)
    kYarn,      ///< arXiv 2309.00071
    kLongrope,  ///< one factor per frequency; other factors in long rows (arXiv 2402.13753)
  };
  Type type = Type::kDefault;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;      // llama3
  int64_t original_max_position_embeddings = 0;              // llama3, yarn, longrope
  double beta_fast = 32.0, beta_slow = 1.0;                  // yarn
  std::optional<double> attention_factor = {}, mscale = {};  // yarn; longrope: no mscale
  std::optional<double> mscale_all_dim = {};                 // yarn with latent attention
  bool truncate = true;                                      // yarn
  /// longrope: divisors of the frequencies, for rows of at most original_max_position_embeddings
  /// tokens and for longer rows.
  std::vector<double> short_factors = {}, long_factors = {};

  /// True if a row of `num_positions` uses the factors for long rows.
  bool is_long(int64_t num_positions) const {
    return type == Type::kLongrope && num_positions > original_max_position_embeddings;
  }

  bool operator==(const RopeScaling&) const = default;
};

/// Types of scaling, by their names in config.json.
inline constexpr std::pair<std::string_view, RopeScaling::Type> kRopeTypes[] = {
    {"default", RopeScaling::Type::kDefault},
    {"linear", RopeScaling::Type::kLinear},
    {"llama3", RopeScaling::Type::kLlama3},
    {"yarn", RopeScaling::Type::kYarn},
    {"longrope", RopeScaling::Type::kLongrope}};
std::string_view name_of(RopeScaling::Type type);

/// Returns YaRN's factor (arXiv 2309.00071, equation 22) for positions scaled by `factor`: 0.1
/// mscale ln(factor) + 1; 1 without scaling.
inline double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// Returns LongRoPE's factor (arXiv 2402.13753) for `original` positions scaled by `factor`: sqrt(1
/// + ln(factor) / ln(original)); 1 without scaling.
inline double longrope_scale(double factor, double original) {
  return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
}

/// The pairs of elements that rotate together, among the 2F rotated elements.
enum class RotaryPairs {
  kHalves,      ///< x[f] and x[f + F]
  kNeighbours,  ///< x[2f] and x[2f + 1]
};

/// Rotation by positions of three axes: time, row and column of a picture (Qwen2-VL, arXiv
/// 2409.12191). Each pair of elements rotates by the position on one axis.
struct RotaryAxes {
  std::array<int64_t, 3> sections = {};  ///< pairs by axis (mrope_section)
  /// Qwen3-VL: pairs f < 3 sections[1] with f % 3 == 1 rotate by rows, pairs f < 3 sections[2] with
  /// f % 3 == 2 by columns, other pairs by time. Otherwise the pairs of time come first, then the
  /// pairs of rows, then the pairs of columns.
  bool interleaved = false;

  bool operator==(const RotaryAxes&) const = default;
};

/// A rotation of the first elements of a head.
struct RotarySpec {
  double theta = 10000.0;  ///< base of the frequencies
  RopeScaling scaling = {};
  std::optional<int64_t> dim = {};  ///< number of rotated elements, even; none: the whole head
  RotaryPairs pairs = RotaryPairs::kHalves;
  std::optional<RotaryAxes> axes = {};  ///< none: positions have one axis

  bool operator==(const RotarySpec&) const = default;
};

/// A rotation of the first `dim` elements of heads. Layers with the same kind share its angles.
struct RotaryKind {
  RotarySpec rotary;
  int64_t dim = 0;

  bool operator==(const RotaryKind&) const = default;
};

}  // namespace longspan
