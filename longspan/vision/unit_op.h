// An operation on the parameters of one unit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "longspan/parameters/parameter_hooks.h"

namespace longspan {

/// One use of a unit: a forward and at most one backward. The parameters' values are there during
/// the forward and during the backward.
class UnitOp {
 public:
  virtual ~UnitOp() = default;
  /// Returns the unit's parameters. Some may be undefined.
  virtual std::vector<at::Tensor> parameters() const = 0;
  /// Returns y of x, outside autograd. `saves`: a backward follows.
  virtual at::Tensor forward(const at::Tensor& x, bool saves) = 0;
  /// Adds gradients of trained parameters to .grad. Returns d loss / d x, undefined unless
  /// `wants_input`.
  virtual at::Tensor backward(const at::Tensor& dy, bool wants_input) = 0;
};

/// Returns y of x and of the parameters' values, in the order in which they were given, by
/// differentiable ATen operations. Undefined parameters stay undefined.
using UnitFunction =
    std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& values)>;

/// Returns the operation that saves x, and computes the function in the forward and again in the
/// backward.
std::unique_ptr<UnitOp> recomputed(UnitFunction function, std::vector<at::Tensor> parameters);

/// An input that is read part by part. It needs no gradient.
struct InputParts {
  int64_t num_parts = 1;
  int64_t num_rows = 0;  // of y, over all parts
  /// Returns a part of the input.
  std::function<at::Tensor(int64_t part)> read;
};

/// Returns y of a part of the input, as UnitFunction.
using PartFunction = std::function<at::Tensor(int64_t part, const at::Tensor& x,
                                              const std::vector<at::Tensor>& values)>;

/// The same for an input in parts; y has the rows of all parts. The operation ignores the x that it
/// is given, and saves the input if it has one part. Otherwise one part exists at a time, and the
/// backward reads the parts again.
std::unique_ptr<UnitOp> recomputed_by_parts(InputParts input, PartFunction function,
                                            std::vector<at::Tensor> parameters);

/// The uses of a unit's parameters, as ParameterHooks wants them.
struct UnitUse {
  ParameterHooks* hooks;  // null: parameters are always there
  int unit;
  int next, below;  // units used after it in the forward and in the backward; -1: none
};

/// Returns y in the autograd graph. Nothing is saved where neither x nor a parameter needs a
/// gradient.
at::Tensor run_unit(std::unique_ptr<UnitOp> op, const at::Tensor& x, const UnitUse& use);

}  // namespace longspan
