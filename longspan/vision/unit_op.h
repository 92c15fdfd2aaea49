// An operation on the parameters of one unit, whose backward computes it again.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/parameters/parameter_hooks.h"

namespace longspan {

/// Returns y of x and of the parameters' values, in the order in which they were given, by
/// differentiable ATen operations. Undefined parameters stay undefined.
using UnitFunction =
    std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& values)>;

/// The uses of a unit's parameters, as ParameterHooks wants them.
struct UnitUse {
  ParameterHooks* hooks;  // null: parameters are always there
  int unit;
  int next, below;   // units used after it in the forward and in the backward; -1: none
  bool keeps_graph;  // saves the function's graph for the backward, which does not compute it again
};

/// Returns y. The backward adds gradients of the parameters to .grad. Saves only x, and nothing
/// where neither x nor a parameter needs a gradient.
at::Tensor run_unit(const UnitFunction& function, const at::Tensor& x,
                    const std::vector<at::Tensor>& parameters, const UnitUse& use);

}  // namespace longspan
