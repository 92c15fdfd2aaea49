// Experts as files may hold them: the matrices of all of a layer's in one tensor. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// One such tensor.
struct StackedExperts {
  std::string name;            ///< in the files
  std::vector<int64_t> shape;  ///< [experts, rows of each, columns]
  /// The parameters that it consists of, equal in size, one behind the other.
  std::vector<std::string> parameters;
};

/// The tensors that may stand for the experts of the layer, as Qwen3.5's mixtures are published and
/// as transformers 5 holds them in memory: gate_up_proj, with the rows of gate_proj before those of
/// up_proj for each expert, and down_proj. None for a layer without experts, or whose files always
/// stack them (MixtureOfExpertsSpec::stacked).
std::vector<StackedExperts> stacked_experts(const ModelSpec& model, int64_t layer);

}  // namespace longspan
