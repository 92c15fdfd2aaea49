#include "longspan/vision/unit_op.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/linear.h"

namespace longspan {
namespace {

using Use = ParameterHooks::Use;

/// One computation with autograd on tensors of its own.
struct Computed {
  at::Tensor x, y;
  std::vector<at::Tensor> values;  // leaves with the parameters' memory
};

Computed compute(const UnitFunction& function, const at::Tensor& x, bool x_needs,
                 const std::vector<at::Tensor>& parameters) {
  const c10::AutoGradMode grad(true);
  Computed computed{.x = x.detach().requires_grad_(x_needs), .y = {}, .values = {}};
  for (const at::Tensor& parameter : parameters) {
    computed.values.push_back(parameter.defined()
                                  ? parameter.detach().requires_grad_(parameter.requires_grad())
                                  : at::Tensor());
  }
  computed.y = function(computed.x, computed.values);
  return computed;
}

bool trains(const at::Tensor& value) { return value.defined() && value.requires_grad(); }

/// Adds the gradients of the parameters. Returns that of x; undefined if it needs none.
at::Tensor backward(const Computed& computed, const at::Tensor& dy,
                    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> inputs;
  if (computed.x.requires_grad()) inputs.push_back(computed.x);
  for (const at::Tensor& value : computed.values) {
    if (trains(value)) inputs.push_back(value);
  }
  const std::vector<at::Tensor> gradients =
      torch::autograd::grad({computed.y}, inputs, {dy}, /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  size_t next = 0;
  at::Tensor dx;
  if (computed.x.requires_grad()) dx = gradients[next++];
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!trains(computed.values[i])) continue;
    if (const at::Tensor& gradient = gradients[next++]; gradient.defined()) {
      add_gradient(parameters[i], gradient);
    }
  }
  return dx;
}

}  // namespace

at::Tensor run_unit(const UnitFunction& function, const at::Tensor& x,
                    const std::vector<at::Tensor>& parameters, const UnitUse& use) {
  ParameterHooks* const hooks = use.hooks;
  const bool needs = needs_backward({x}, parameters), x_needs = x.requires_grad();
  if (hooks != nullptr) hooks->before(use.unit, Use::kForward, use.next);
  std::shared_ptr<Computed> kept;
  at::Tensor y;
  if (needs && use.keeps_graph) {
    kept = std::make_shared<Computed>(compute(function, x, x_needs, parameters));
    y = kept->y.detach();
  } else {
    const c10::NoGradGuard no_grad;
    y = function(x.detach(), parameters);
  }
  if (hooks != nullptr) hooks->after(use.unit, Use::kForward);
  if (!needs) return y;
  return attach_backward({y}, {x}, parameters,
                         [function, x = kept ? at::Tensor() : x.detach(), x_needs, parameters, use,
                          kept](const std::vector<at::Tensor>& gradients) mutable {
                           if (use.hooks != nullptr) {
                             use.hooks->before(use.unit, Use::kBackward, x_needs ? use.below : -1);
                           }
                           const Computed computed =
                               kept ? *kept : compute(function, x, x_needs, parameters);
                           kept.reset();
                           std::vector<at::Tensor> dx{backward(computed, gradients[0], parameters)};
                           // The lowest unit stays open until the end of the backward, as the
                           // decoder's does.
                           if (use.hooks != nullptr && x_needs)
                             use.hooks->after(use.unit, Use::kBackward);
                           return dx;
                         })[0];
}

}  // namespace longspan
