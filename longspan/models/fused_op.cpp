#include "longspan/models/fused_op.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Capsule : torch::CustomClassHolder {
  Backward backward;
  explicit Capsule(Backward b) : backward(std::move(b)) {}
};

// Arguments of forward() that are not tensors still count as inputs of the node.
constexpr size_t kNumOtherArguments = 2;

struct FusedOp : torch::autograd::Function<FusedOp> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const variable_list* outputs, Backward* backward) {
    context->saved_data["backward"] =
        c10::IValue::make_capsule(c10::make_intrusive<Capsule>(std::move(*backward)));
    context->saved_data["num_inputs"] = static_cast<int64_t>(inputs.size());
    return *outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto capsule = context->saved_data["backward"].toCapsule();
    Backward backward = std::exchange(static_cast<Capsule&>(*capsule).backward, nullptr);
    TORCH_CHECK(backward, "a fused operation's graph can be walked backward only once");
    variable_list result = backward(std::move(gradients));
    result.resize(context->saved_data["num_inputs"].toInt() + kNumOtherArguments);
    return result;
  }
};

bool any_requires_grad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

}  // namespace

bool needs_backward(const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& parameters) {
  return c10::GradMode::is_enabled() &&
         (any_requires_grad(inputs) || any_requires_grad(parameters));
}

std::vector<at::Tensor> attach_backward(std::vector<at::Tensor> outputs,
                                        const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& parameters,
                                        Backward backward) {
  variable_list graph_inputs = inputs;
  if (!any_requires_grad(inputs)) {
    // Autograd records a node only if some input wants a gradient; this one gets none from us.
    for (const auto& parameter : parameters) {
      if (parameter.defined() && parameter.requires_grad()) {
        graph_inputs.push_back(parameter);
        break;
      }
    }
  }
  return FusedOp::apply(at::TensorList(graph_inputs), &outputs, &backward);
}

}  // namespace longspan
