#include "longspan/vision/unit_op.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/linear.h"

namespace longspan {
namespace {

using Use = ParameterHooks::Use;

class Recomputed : public UnitOp {
 public:
  Recomputed(UnitFunction function, std::vector<at::Tensor> parameters)
      : function_(std::move(function)), parameters_(std::move(parameters)) {}

  std::vector<at::Tensor> parameters() const override { return parameters_; }

  at::Tensor forward(const at::Tensor& x, bool saves) override {
    if (saves) x_ = x;
    return function_(x, parameters_);
  }

  at::Tensor backward(const at::Tensor& dy, bool wants_input) override {
    // Autograd runs on tensors of its own with the parameters' memory.
    std::vector<at::Tensor> values, inputs;
    const at::Tensor x = std::exchange(x_, {}).detach().requires_grad_(wants_input);
    if (wants_input) inputs.push_back(x);
    for (const at::Tensor& parameter : parameters_) {
      values.push_back(parameter.defined()
                           ? parameter.detach().requires_grad_(parameter.requires_grad())
                           : at::Tensor());
      if (trains(parameter)) inputs.push_back(values.back());
    }
    at::Tensor y;
    {
      const c10::AutoGradMode grad(true);
      y = function_(x, values);
    }
    const std::vector<at::Tensor> gradients =
        torch::autograd::grad({y}, inputs, {dy}, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    size_t next = wants_input ? 1 : 0;
    for (const at::Tensor& parameter : parameters_) {
      if (!trains(parameter)) continue;
      if (const at::Tensor& gradient = gradients[next++]; gradient.defined()) {
        add_gradient(parameter, gradient);
      }
    }
    return wants_input ? gradients[0] : at::Tensor();
  }

 private:
  static bool trains(const at::Tensor& parameter) {
    return parameter.defined() && parameter.requires_grad();
  }

  UnitFunction function_;
  std::vector<at::Tensor> parameters_;
  at::Tensor x_;
};

}  // namespace

std::unique_ptr<UnitOp> recomputed(UnitFunction function, std::vector<at::Tensor> parameters) {
  return std::make_unique<Recomputed>(std::move(function), std::move(parameters));
}

at::Tensor run_unit(std::unique_ptr<UnitOp> op, const at::Tensor& x, const UnitUse& use) {
  const std::shared_ptr<UnitOp> shared = std::move(op);
  const std::vector<at::Tensor> parameters = shared->parameters();
  const bool needs = needs_backward({x}, parameters), wants_input = x.requires_grad();
  if (use.hooks != nullptr) use.hooks->before(use.unit, Use::kForward, use.next);
  at::Tensor y;
  {
    const c10::NoGradGuard no_grad;
    y = shared->forward(x.detach(), needs);
  }
  if (use.hooks != nullptr) use.hooks->after(use.unit, Use::kForward);
  if (!needs) return y;
  return attach_backward(
      {y}, {x}, parameters, [shared, wants_input, use](std::vector<at::Tensor> gradients) {
        if (use.hooks != nullptr) {
          use.hooks->before(use.unit, Use::kBackward, wants_input ? use.below : -1);
        }
        const at::Tensor dy = std::exchange(gradients[0], {});
        std::vector<at::Tensor> dx;
        {
          const c10::NoGradGuard no_grad;
          dx.push_back(shared->backward(dy, wants_input));
        }
        // The lowest unit stays open until the end of the backward, as the decoder's does.
        if (use.hooks != nullptr && wants_input) use.hooks->after(use.unit, Use::kBackward);
        return dx;
      })[0];
}

}  // namespace longspan
