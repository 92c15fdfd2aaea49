// The interface of optimizers, and helpers that all of them use.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "longspan/optim/state_shard.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// Returns one shard for each parameter that requires a gradient: the whole parameter. `specs` must
/// contain all parameters.
std::vector<ParameterShard> unsharded_parameters(const std::vector<NamedTensor>& parameters,
                                                 const ParameterTable& specs);

/// Returns the factor of the learning rate for a parameter. With LoRA+ (arXiv 2402.12354,
/// loraplus_lr_ratio): the ratio for an adapter's second matrix and for vectors, as in PEFT and
/// LLaMA-Factory, and 1 for other parameters.
double learning_rate_factor(const ParameterSpec& parameter,
                            std::optional<double> loraplus_lr_ratio);

/// Allocates an uninitialized state tensor of the size and dtype of `like`, on the device for
/// states.
using AllocateLike = std::function<at::Tensor(const at::Tensor& like)>;

/// Updates parameters from their gradients.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Updates each shard that has a gradient, by the learning rate times its rate_factor. May be
  /// collective over the ranks that shard the parameters.
  virtual void step(double learning_rate) = 0;
  /// Returns one lazy StateSource per locally trained shard, without "master". make() reads the
  /// state at the time of the call. Sources must not outlive the optimizer. Do not modify a shard,
  /// and use no shard after step().
  virtual std::vector<StateSource> state() const = 0;
  /// Loads the state of shard i of state(). A "master" in the state replaces the values.
  virtual void load_state(size_t i, const StateShard& shard) = 0;
};

/// Throws c10::Error unless the state belongs to the same range of the same parameter.
void require_same_run(const StateShard& state, const ParameterShard& trained);

/// Copies a "master" in the state, if any, into the values.
void load_master(const StateShard& state, const ParameterShard& trained);

/// Work on whole matrices. make(i) returns the values of shard i's elements, on any device. use(i,
/// whole) receives the elements of all shards of that parameter, in the parameter's shape, on the
/// computing device. use is called once for each shard of this rank.
struct WholeWork {
  at::ScalarType dtype;  // of the elements that ranks exchange
  std::function<at::Tensor(size_t shard)> make;
  std::function<void(size_t shard, const at::Tensor& whole)> use;
};
/// Runs the work. Collective over the ranks that shard the parameters.
using OverWholeMatrices = std::function<void(const WholeWork& work)>;

/// Runs the work for shards that are whole parameters, without communication.
void over_unsharded_parameters(const std::vector<ParameterShard>& shards,
                               const std::function<bool(const ParameterShard& shard)>& is_wanted,
                               const WholeWork& work);

}  // namespace longspan
