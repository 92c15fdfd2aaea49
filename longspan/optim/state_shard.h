// Optimizer state in the form in which it is saved to checkpoints and loaded by other numbers of
// ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// Elements [begin, end) of a flattened parameter, which this rank trains; all elements if nothing
/// is sharded.
struct ParameterShard {
  std::string parameter;  // Hugging Face name
  int64_t begin = 0, end = 0;
  at::Tensor values;         // end - begin elements of any shape; its .grad is the gradient
  ParameterSpec spec;        // of the whole parameter
  double rate_factor = 1.0;  // multiplies the learning rate of the step (learning_rate_factor)
};

/// The optimizer state of elements [begin, end) of a flattened parameter.
struct StateShard {
  std::string parameter;
  int64_t begin = 0, end = 0;
  int64_t num_steps = 0;  // updates so far
  /// "exp_avg" and the optimizer's other states: 1-D, fp32 (fp64 for fp64 parameters), end - begin
  /// elements each. "master": the values themselves, if the saved weights are rounded.
  std::map<std::string, at::Tensor> tensors;
};

/// Makes a StateShard on demand, so that no process holds all states at once.
struct StateSource {
  std::string parameter;
  int64_t begin = 0, end = 0;
  std::map<std::string, at::ScalarType> dtypes;  // of the shard's tensors
  /// The tensors of the shard may be on any device, and may be views of the trained tensors.
  std::function<StateShard()> make;
};

/// Adds the values (any shape) as "master". The values are read when the shard is made.
StateSource with_master(StateSource source, const at::Tensor& values);

}  // namespace longspan
