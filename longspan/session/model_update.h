// Updates parameters from a step's gradients, for whole and for sharded parameters.
#pragma once

#include <memory>
#include <vector>

#include "longspan/optim/optimizer.h"
#include "longspan/optim/packed_parameters.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/session/gradient_reduction.h"
#include "longspan/settings/optimization_settings.h"

namespace longspan {

/// Updates whole parameters on every rank, or the shards of ShardedParameters. All members are
/// collective over the world.
class ModelUpdate {
 public:
  /// `sharded`: the owner of `parameters`, or null if every rank has whole parameters. `sums`: of
  /// whole parameters; null: there is one rank, or `sharded` is not null. `specs` has all
  /// parameters. `offload`: the optimizer's states live in host memory.
  ModelUpdate(std::vector<NamedTensor> parameters, const ParameterTable& specs,
              ShardedParameters* sharded, WholeGradientSums* sums,
              const OptimizationSettings& config, bool offload);
  /// Sets the owner of frozen parameters that are held in 4 bits.
  void set_packed(PackedParameters* packed) { packed_ = packed; }

  /// Must be called after each backward pass.
  void end_backward();
  /// As the members of ShardedParameters.
  void begin_last_row();
  void start_sums();
  /// Sums the gradients over all ranks; each rank has the gradient of its own contribution to the
  /// loss. Returns the norm of the summed gradients.
  double sum_gradients();
  /// Scales gradients by min(1, max_norm / (norm + 1e-6)).
  void clip(double norm, double max_norm);
  /// Updates the parameters and drops the gradients.
  void step(double learning_rate);
  /// Drops the gradients without an update.
  void drop_gradients();

  /// Returns this rank's trained parameters, with their gradients between sum_gradients() and
  /// step().
  std::vector<NamedTensor> trained() const;
  /// Returns the shards of the trained parameters, in the order of optimizer().state().
  const std::vector<ParameterShard>& shards() const { return shards_; }
  Optimizer& optimizer() const { return *optimizer_; }
  /// Must be called after code outside this class has changed parameter values or optimizer states.
  void publish();

 private:
  std::vector<NamedTensor> parameters_;
  ShardedParameters* sharded_;
  WholeGradientSums* sums_;
  PackedParameters* packed_ = nullptr;
  std::vector<ParameterShard> shards_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace longspan
