// Inputs for making an optimizer.
#pragma once

#include <vector>

#include "longspan/optim/optimizer.h"
#include "longspan/settings/optimization_settings.h"

namespace longspan {

struct OptimizerJob {
  const OptimizationSettings& config;
  std::vector<ParameterShard> shards;
  AllocateLike allocate;
  /// For rules that need whole matrices. Piece indices are those of `shards`.
  OverWholeMatrices over_whole_matrices;
};

}  // namespace longspan
