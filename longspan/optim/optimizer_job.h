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
  /// For optimizers that need whole matrices. WholeWork names a shard by its index in `shards`.
  OverWholeMatrices over_whole_matrices;
};

}  // namespace longspan
