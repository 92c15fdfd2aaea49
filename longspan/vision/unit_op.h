// An operation on the parameters of one unit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "longspan/parameters/parameter_hooks.h"

namespace longspan {

/// One use of a unit: a forward and at most one backward. The parameters' values are in memory
/// during the forward and during the backward.
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

/// Computes y from x and from the values of the parameters, by differentiable ATen operations. The
/// values have the order of the parameters that recomputed() got. Undefined parameters stay
/// undefined.
using UnitFunction =
    std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& values)>;

/// Returns an operation that computes the function in the forward, saves x, and computes the
/// function again in the backward.
std::unique_ptr<UnitOp> recomputed(UnitFunction function, std::vector<at::Tensor> parameters);

/// An input that is read part by part, and that needs no gradient.
struct InputParts {
  int64_t num_parts = 1;
  int64_t num_rows = 0;  // of y, over all parts
  /// Returns a part of the input.
  std::function<at::Tensor(int64_t part)> read;
};

/// Computes y from a part of the input, as UnitFunction does.
using PartFunction = std::function<at::Tensor(int64_t part, const at::Tensor& x,
                                              const std::vector<at::Tensor>& values)>;

/// As recomputed(), for an input in parts. y has the rows of all parts. The operation ignores its
/// argument x. If the input is one part, this part is saved. If the input has several parts, one
/// part exists at a time, and the backward reads the parts again.
std::unique_ptr<UnitOp> recomputed_by_parts(InputParts input, PartFunction function,
                                            std::vector<at::Tensor> parameters);

/// The unit of the operation, and the neighbouring units, as ParameterHooks needs them.
struct UnitUse {
  ParameterHooks* hooks;  // null: parameters are always in memory
  int unit;
  int next, below;  // units used after this unit in the forward and in the backward; -1: none
};

/// Returns y in the autograd graph. Nothing is saved where neither x nor a parameter needs a
/// gradient.
at::Tensor run_unit(std::unique_ptr<UnitOp> op, const at::Tensor& x, const UnitUse& use);

}  // namespace longspan
