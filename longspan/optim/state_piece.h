// How the optimizer's state travels: into checkpoints, and from one layout of ranks to another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// The numbers [begin, end) of a flattened parameter, as they are trained here. Unsharded: all of
/// it.
struct ParameterPiece {
  std::string parameter;  // Hugging Face name
  int64_t begin = 0, end = 0;
  at::Tensor values;   // end - begin numbers of any shape; its .grad is the gradient
  ParameterSpec spec;  // of the whole parameter
};

/// The optimizer's state of such a run.
struct StatePiece {
  std::string parameter;
  int64_t begin = 0, end = 0;
  int64_t num_steps = 0;  // updates so far
  /// "exp_avg" and what other states the optimizer has: 1-D, fp32 (fp64 for fp64 parameters), end -
  /// begin numbers each. "master": the values themselves, where the saved weights are rounded.
  std::map<std::string, at::Tensor> tensors;
};

/// Makes a StatePiece on demand, so that no process holds all of them at once.
struct StateSource {
  std::string parameter;
  int64_t begin = 0, end = 0;
  std::map<std::string, at::ScalarType> dtypes;  // of the piece's tensors
  /// The piece's tensors may be on any device, and views of what is trained.
  std::function<StatePiece()> make;
};

/// Adds a "master": the values (any shape), read when the piece is made.
StateSource with_master(StateSource source, const at::Tensor& values);

}  // namespace longspan
