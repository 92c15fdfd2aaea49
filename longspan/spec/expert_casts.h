// Casts of matrices of experts on a GPU that computes all experts at once, in bf16. No torch.
#pragma once

#include <cstdint>

namespace longspan {

struct MixtureOfExpertsSpec;

/// Rows of an expert, on average, from which on a pass (a layer's forward or backward over a row)
/// casts matrices and adapters in fp32 once, for all of its grouped gemms. By the rates on an H200
/// (docs/gpu-measurements.md), the cast of a matrix pays in one gemm from some 110 rows on.
inline constexpr int64_t kCastExpertRows = 128;

struct ExpertCasts {
  int64_t num_tokens = 0;   ///< tokens of a pass from which on it casts
  int64_t num_experts = 0;  ///< of the layer
  int64_t matrices = 0;     ///< elements of one expert's matrices
  int64_t adapters = 0;     ///< elements of one expert's adapters, for each unit of their rank
};

/// Returns the casts of a layer with these experts.
ExpertCasts expert_casts(const MixtureOfExpertsSpec& mixture, int64_t hidden_size);

}  // namespace longspan
