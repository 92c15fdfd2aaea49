#include "bindings/second_derivative.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>

#include "bindings/registration.h"
#include "longspan/base/user_error.h"

namespace longspan {
namespace {

using torch::autograd::variable_list;

/// Runs with the node alone. A hook of the tensor would run for gradients of the tensor, too.
struct Refusal : torch::autograd::FunctionPreHook {
  explicit Refusal(const char* name) : function(name) {}
  variable_list operator()(const variable_list& gradients) override {
    refuse_second_derivative(function);
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  const char* function;
};

}  // namespace

void refuse_second_derivative(const char* function) {
  if (!c10::GradMode::is_enabled()) return;
  for_python([&] {
    throw UserError(fmt::format(
        "{} has no second derivative: a backward with create_graph=True cannot pass it", function));
  });
}

at::Tensor with_one_derivative(at::Tensor x, const char* function) {
  if (const auto& node = x.grad_fn()) node->add_pre_hook(std::make_unique<Refusal>(function));
  return x;
}

}  // namespace longspan
