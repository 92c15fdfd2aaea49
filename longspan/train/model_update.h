// From the gradients of a step to new parameters, wherever they lie.
#pragma once

#include <memory>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/config/config.h"
#include "longspan/optim/optimizer.h"
#include "longspan/optim/sharded_parameters.h"

namespace longspan {

/// Whole parameters on every rank, or those of ShardedParameters. All members are collective over
/// the world.
class ModelUpdate {
 public:
  /// `sharded`: where `parameters` come from, or null.
  ModelUpdate(std::vector<NamedTensor> parameters, ShardedParameters* sharded, const Group& world,
              const Config& config);

  /// After each backward pass.
  void end_backward();
  /// Each rank holds gradients of its own contribution; from here on, of all. Returns their norm.
  double sum_gradients();
  /// Scales gradients by min(1, max_norm / (norm + 1e-6)).
  void clip(double norm, double max_norm);
  /// Updates, and drops the gradients.
  void step(double learning_rate);
  /// Drops them alone.
  void drop_gradients();

  /// What is trained on this rank, with its gradients between sum_gradients() and step().
  std::vector<NamedTensor> trained() const;
  /// The same, in the order of optimizer().state().
  const std::vector<ParameterPiece>& pieces() const { return pieces_; }
  Optimizer& optimizer() const { return *optimizer_; }
  /// After values or state were written from outside.
  void publish();

 private:
  std::vector<NamedTensor> parameters_;
  ShardedParameters* sharded_;
  Group world_;
  std::vector<ParameterPiece> pieces_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace longspan
