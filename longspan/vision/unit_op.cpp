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

bool is_trained(const at::Tensor& parameter) {
  return parameter.defined() && parameter.requires_grad();
}

/// Computes y of x again, and adds the gradients of trained parameters. Returns d loss / d x,
/// undefined unless `wants_input`.
at::Tensor recompute_backward(const UnitFunction& function, const at::Tensor& input,
                              const std::vector<at::Tensor>& parameters, const at::Tensor& dy,
                              bool wants_input) {
  // Autograd runs on tensors of its own with the parameters' memory.
  std::vector<at::Tensor> values, inputs;
  const at::Tensor x = input.detach().requires_grad_(wants_input);
  if (wants_input) inputs.push_back(x);
  for (const at::Tensor& parameter : parameters) {
    values.push_back(parameter.defined()
                         ? parameter.detach().requires_grad_(parameter.requires_grad())
                         : at::Tensor());
    if (is_trained(parameter)) inputs.push_back(values.back());
  }
  at::Tensor y;
  {
    const c10::AutoGradMode grad(true);
    y = function(x, values);
  }
  const std::vector<at::Tensor> gradients =
      torch::autograd::grad({y}, inputs, {dy}, /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  size_t next = wants_input ? 1 : 0;
  for (const at::Tensor& parameter : parameters) {
    if (!is_trained(parameter)) continue;
    if (const at::Tensor& gradient = gradients[next++]; gradient.defined()) {
      add_gradient(parameter, gradient);
    }
  }
  return wants_input ? gradients[0] : at::Tensor();
}

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
    return recompute_backward(function_, std::exchange(x_, {}), parameters_, dy, wants_input);
  }

 private:
  UnitFunction function_;
  std::vector<at::Tensor> parameters_;
  at::Tensor x_;
};

class RecomputedByParts : public UnitOp {
 public:
  RecomputedByParts(InputParts input, PartFunction function, std::vector<at::Tensor> parameters)
      : input_(std::move(input)),
        function_(std::move(function)),
        parameters_(std::move(parameters)) {}

  std::vector<at::Tensor> parameters() const override { return parameters_; }

  at::Tensor forward(const at::Tensor& /*x*/, bool saves) override {
    if (input_.num_parts == 1) {
      const at::Tensor x = input_.read(0);
      if (saves) x_ = x;
      return function_(0, x, parameters_);
    }
    at::Tensor y;
    int64_t begin = 0;
    for (int64_t part = 0; part < input_.num_parts; ++part) {
      const at::Tensor of_part = function_(part, input_.read(part), parameters_);
      if (!y.defined()) y = at::empty({input_.num_rows, of_part.size(1)}, of_part.options());
      y.narrow(0, begin, of_part.size(0)).copy_(of_part);
      begin += of_part.size(0);
      if (saves) part_rows_.push_back(of_part.size(0));
    }
    TORCH_CHECK(begin == input_.num_rows, "the parts have ", begin, " rows, not ", input_.num_rows);
    return y;
  }

  at::Tensor backward(const at::Tensor& dy, bool /*wants_input*/) override {
    if (part_rows_.empty()) part_rows_.push_back(dy.size(0));
    int64_t begin = 0;
    for (int64_t part = 0; part < input_.num_parts; ++part) {
      const at::Tensor x = x_.defined() ? std::exchange(x_, {}) : input_.read(part);
      const int64_t rows = part_rows_[static_cast<size_t>(part)];
      recompute_backward(
          [&](const at::Tensor& of_part, const std::vector<at::Tensor>& values) {
            return function_(part, of_part, values);
          },
          x, parameters_, dy.narrow(0, begin, rows), /*wants_input=*/false);
      begin += rows;
    }
    return {};
  }

 private:
  InputParts input_;
  PartFunction function_;
  std::vector<at::Tensor> parameters_;
  at::Tensor x_;                    // of a single part
  std::vector<int64_t> part_rows_;  // of y
};

}  // namespace

std::unique_ptr<UnitOp> recomputed(UnitFunction function, std::vector<at::Tensor> parameters) {
  return std::make_unique<Recomputed>(std::move(function), std::move(parameters));
}

std::unique_ptr<UnitOp> recomputed_by_parts(InputParts input, PartFunction function,
                                            std::vector<at::Tensor> parameters) {
  return std::make_unique<RecomputedByParts>(std::move(input), std::move(function),
                                             std::move(parameters));
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
