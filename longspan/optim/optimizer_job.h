// What an optimizer is made from.
#pragma once

#include <vector>

#include "longspan/config/optimization_settings.h"
#include "longspan/optim/optimizer.h"

namespace longspan {

struct OptimizerJob {
  const OptimizationSettings& config;
  std::vector<ParameterPiece> pieces;
  AllocateLike allocate;
  /// For rules that want matrices whole. Piece numbers are those of `pieces`.
  OverWholeMatrices over_whole_matrices;
};

}  // namespace longspan
