// Makes new parameters of a step's gradients, whether ranks hold whole parameters or shares.
#pragma once

#include <memory>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/config/optimization_settings.h"
#include "longspan/optim/optimizer.h"
#include "longspan/optim/sharded_parameters.h"

namespace longspan {

/// Whole parameters on every rank, or those of ShardedParameters. All members are collective over
/// the world.
class ModelUpdate {
 public:
  /// `sharded`: what made `parameters`, or null where they are whole. `specs` has all parameters.
  /// `offload`: the optimizer's states lie in host memory.
  ModelUpdate(std::vector<NamedTensor> parameters, const ParameterTable& specs,
              ShardedParameters* sharded, const Group& world, const OptimizationSettings& config,
              bool offload);

  /// Call it after each backward pass.
  void end_backward();
  /// Sums the gradients over all ranks, of which each holds those of its own contribution. Returns
  /// the norm of the sums.
  double sum_gradients();
  /// Scales gradients by min(1, max_norm / (norm + 1e-6)).
  void clip(double norm, double max_norm);
  /// Updates, and drops the gradients.
  void step(double learning_rate);
  /// Drops the gradients without an update.
  void drop_gradients();

  /// What is trained on this rank, with its gradients between sum_gradients() and step().
  std::vector<NamedTensor> trained() const;
  /// The same, in the order of optimizer().state().
  const std::vector<ParameterPiece>& pieces() const { return pieces_; }
  Optimizer& optimizer() const { return *optimizer_; }
  /// Call it after something else has written values or state.
  void publish();

 private:
  std::vector<NamedTensor> parameters_;
  ShardedParameters* sharded_;
  Group world_;
  std::vector<ParameterPiece> pieces_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace longspan
