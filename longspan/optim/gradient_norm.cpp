#include "longspan/optim/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <cmath>

namespace longspan {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<NamedTensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
  }
  return gradients;
}

}  // namespace

double global_gradient_norm(const std::vector<NamedTensor>& parameters) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return 0.0;
  // bf16 squares would lose all but three digits.
  const auto dtype = gradients[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::vector<at::Tensor> norms = at::_foreach_norm(gradients, 2, dtype);
  return at::linalg_vector_norm(at::stack(norms).to(at::kDouble)).item<double>();
}

std::vector<std::string> nonfinite_gradients(const std::vector<NamedTensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) continue;
    const auto dtype = gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const double norm = at::linalg_vector_norm(gradient, 2, {}, false, dtype).item<double>();
    if (!std::isfinite(norm)) names.push_back(parameter.name);
  }
  return names;
}

void clip_gradients(const std::vector<NamedTensor>& parameters, double norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1.0) return;
  at::_foreach_mul_(gradients_of(parameters), factor);
}

}  // namespace longspan
