#include "longspan/kernels/fused_op.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>
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

// Non-tensor arguments of forward() also count as inputs of the node.
constexpr size_t kNumOtherArguments = 2;

/// The engine holds its gradients until the operation has returned, without reading them again.
/// Where no one else holds them, this takes the memory over, so that it is freed when the backward
/// is done with it.
at::Tensor taken_over(at::Tensor gradient) {
  constexpr size_t kEngineAndWe = 2;
  if (!gradient.defined() || !gradient.has_storage() || gradient.use_count() > kEngineAndWe ||
      gradient.storage().use_count() > 1 || gradient.requires_grad()) {
    return gradient;
  }
  const at::NoGradGuard no_grad;
  c10::StorageImpl* from = gradient.storage().unsafeGetStorageImpl();
  const size_t num_bytes = from->nbytes();
  c10::Storage memory(c10::Storage::use_byte_size_t{}, num_bytes,
                      from->set_data_ptr(c10::DataPtr(nullptr, gradient.device())),
                      from->allocator(), from->resizable());
  from->set_nbytes(0);
  return at::empty({0}, gradient.options())
      .set_(std::move(memory), gradient.storage_offset(), gradient.sizes(), gradient.strides());
}

struct FusedOp : torch::autograd::Function<FusedOp> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const variable_list* outputs, Backward* backward) {
    context->saved_data["backward"] =
        c10::IValue::make_capsule(c10::make_intrusive<Capsule>(std::move(*backward)));
    context->saved_data["num_inputs"] = static_cast<int64_t>(inputs.size());
    return *outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    for (at::Tensor& gradient : gradients) gradient = taken_over(std::move(gradient));
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

bool is_sole_owner(const at::Tensor& x) {
  return x.use_count() == 1 && x.storage().use_count() == 1;
}

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
    // Autograd records a node only where some input needs a gradient. This parameter gets none from
    // the node.
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
