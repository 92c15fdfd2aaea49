// How queries and keys are rotated by their positions (RoFormer, arXiv 2104.09864), as data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

/// rope_scaling / rope_parameters of config.json.
struct RopeScaling {
  std::string type = "default";  // default | linear | llama3 | yarn
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;            // llama3
  int64_t original_max_position_embeddings = 0;                    // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;                        // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn
  bool truncate = true;                                            // yarn

  bool operator==(const RopeScaling&) const = default;
};

/// One rotation, of the first numbers of a head.
struct RotarySpec {
  double theta = 10000.0;  ///< the base of the frequencies
  RopeScaling scaling = {};
  std::optional<int64_t> dim = {};  ///< how many numbers, an even number; none: all of the head

  bool operator==(const RotarySpec&) const = default;
};

/// A rotation of the first `dim` numbers of heads: layers that have the same one share its angles.
struct RotaryKind {
  RotarySpec rotary;
  int64_t dim = 0;

  bool operator==(const RotaryKind&) const = default;
};

}  // namespace longspan
