#include "longspan/kernels/parameter_rows.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "longspan/kernels/linear.h"

namespace longspan {

at::Tensor ParameterRows::values() const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const auto& [begin, size] : runs) parts.push_back(parameter.detach().narrow(0, begin, size));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

void ParameterRows::add_gradient(const at::Tensor& gradient) const {
  if (!parameter.requires_grad()) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor& sum = gradient_of(parameter);
  int64_t from = 0;
  for (const auto& [begin, size] : runs) {
    sum.narrow(0, begin, size).add_(gradient.narrow(0, from, size));
    from += size;
  }
}

}  // namespace longspan
