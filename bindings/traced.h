// Operators on tensors without values: fake tensors, meta tensors, and torch.compile, which record
// the operators instead of computing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <vector>

namespace longspan {

/// Whether torch records a call with x, or Python code observes the call. An operator then makes
/// one dispatcher call in the forward and one in the backward. Otherwise autograd records the
/// single steps of the computation.
bool is_traced(const at::Tensor& x);

/// Whether x has no values of its own: a meta, fake or functional tensor.
bool is_symbolic(const at::Tensor& x);

/// Returns the operator `name` of this library, for calls through the dispatcher.
template <typename Function>
c10::TypedOperatorHandle<Function> operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

/// Calls `function` on copies of `inputs` that record for autograd, and returns d loss / d inputs
/// for d loss / d result. Undefined inputs have undefined gradients.
std::vector<at::Tensor> gradients_by_replay(
    const std::vector<at::Tensor>& inputs, const at::Tensor& dresult,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function);

}  // namespace longspan
