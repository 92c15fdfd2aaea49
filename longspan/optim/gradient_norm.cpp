#include "longspan/optim/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "longspan/cpu/vector_math.h"
#include "longspan/memory/transfer.h"

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

/// For a gradient in CPU memory: sums slabs of a fixed length and adds their sums in order, so that
/// the result does not depend on the number of threads.
template <typename S>
double sum_of_slabs(const at::Tensor& gradient) {
  constexpr int64_t kSlab = int64_t{1} << 16;
  const int64_t n = gradient.numel(), num_slabs = (n + kSlab - 1) / kSlab;
  const S* data = gradient.const_data_ptr<S>();
  std::vector<double> sums(num_slabs);
  at::parallel_for(0, num_slabs, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * kSlab, m = std::min(kSlab, n - begin);
      sums[i] = vector_math::precise_sum_of_squares(data + begin, m);
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

double sum_on_cpu(const at::Tensor& gradient) {
  // The order of the terms does not matter, so a dense tensor is read in memory order.
  const at::Tensor dense =
      gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous();
  switch (dense.scalar_type()) {
    case at::kFloat:
      return sum_of_slabs<float>(dense);
    case at::kDouble:
      return sum_of_slabs<double>(dense);
    case at::kBFloat16:
      return sum_of_slabs<c10::BFloat16>(dense);
    default:
      TORCH_CHECK(false, "gradients are fp32, bf16 or fp64, not ", dense.scalar_type());
  }
}

}  // namespace

at::Tensor sum_of_squares(const std::vector<at::Tensor>& gradients, at::Device device) {
  const at::NoGradGuard no_grad;
  double on_host = 0.0;
  std::vector<at::Tensor> elsewhere;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    if (gradient.is_cpu()) {
      on_host += sum_on_cpu(gradient);
    } else {
      elsewhere.push_back(gradient);
    }
  }
  at::Tensor sum = sent_to(at::full({1}, on_host, at::kDouble), device);
  if (elsewhere.empty()) return sum;
  const at::Tensor norms = at::stack(at::_foreach_norm(elsewhere, 2, at::kDouble));
  return sum.add_(norms.square().sum());
}

double global_gradient_norm(const std::vector<NamedTensor>& parameters) {
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  const auto elsewhere = std::ranges::find_if(
      gradients, [](const at::Tensor& gradient) { return !gradient.is_cpu(); });
  const at::Device device = elsewhere == gradients.end() ? at::kCPU : elsewhere->device();
  return std::sqrt(sum_of_squares(gradients, device).item<double>());
}

std::vector<std::string> nonfinite_gradients(const std::vector<NamedTensor>& parameters) {
  std::vector<std::string> names;
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) continue;
    const double sum = sum_of_squares({gradient}, gradient.device()).item<double>();
    if (!std::isfinite(sum)) names.push_back(parameter.name);
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
