// How queries and keys are rotated by their positions (RoFormer, arXiv 2104.09864), as data.
#pragma once

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
    kLlama3,    ///< long wavelengths are stretched (Llama 3.1, arXiv 2407.21783)
    kYarn,      ///< arXiv 2309.00071
    kLongrope,  ///< each frequency has a factor of its own, in long rows another (arXiv 2402.13753)
  };
  Type type = Type::kDefault;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;      // llama3
  int64_t original_max_position_embeddings = 0;              // llama3, yarn, longrope
  double beta_fast = 32.0, beta_slow = 1.0;                  // yarn
  std::optional<double> attention_factor = {}, mscale = {};  // yarn; longrope has the first
  std::optional<double> mscale_all_dim = {};                 // yarn, latent attention
  bool truncate = true;                                      // yarn
  /// longrope: what each frequency is divided by, in rows of up to the original positions and in
  /// longer ones.
  std::vector<double> short_factors = {}, long_factors = {};

  /// Is a row of so many positions rotated by the factors of long ones?
  bool is_long(int64_t num_positions) const {
    return type == Type::kLongrope && num_positions > original_max_position_embeddings;
  }

  bool operator==(const RopeScaling&) const = default;
};

/// By their names in config.json.
inline constexpr std::pair<std::string_view, RopeScaling::Type> kRopeTypes[] = {
    {"default", RopeScaling::Type::kDefault},
    {"linear", RopeScaling::Type::kLinear},
    {"llama3", RopeScaling::Type::kLlama3},
    {"yarn", RopeScaling::Type::kYarn},
    {"longrope", RopeScaling::Type::kLongrope}};
std::string_view name_of(RopeScaling::Type type);

/// What YaRN (arXiv 2309.00071, equation 22) multiplies by where positions are stretched by
/// `factor`: 0.1 mscale ln(factor) + 1, and 1 where they are not.
inline double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// What LongRoPE (arXiv 2402.13753) multiplies by where `original` positions are
/// stretched by `factor`: sqrt(1 + ln(factor) / ln(original)), and 1 where they are not.
inline double longrope_scale(double factor, double original) {
  return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
}

/// Which of the 2F numbers that are rotated turn together.
enum class RotaryPairs {
  kHalves,      ///< x[f] and x[f + F]
  kNeighbours,  ///< x[2f] and x[2f + 1]
};

/// One rotation, of the first numbers of a head.
struct RotarySpec {
  double theta = 10000.0;  ///< the base of the frequencies
  RopeScaling scaling = {};
  std::optional<int64_t> dim = {};  ///< how many numbers, an even number; none: all of the head
  RotaryPairs pairs = RotaryPairs::kHalves;

  bool operator==(const RotarySpec&) const = default;
};

/// A rotation of the first `dim` numbers of heads: layers that have the same one share its angles.
struct RotaryKind {
  RotarySpec rotary;
  int64_t dim = 0;

  bool operator==(const RotaryKind&) const = default;
};

}  // namespace longspan
