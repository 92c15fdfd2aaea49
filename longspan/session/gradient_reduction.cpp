#include "longspan/session/gradient_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

namespace longspan {
namespace {

/// Gradients that are reduced together.
struct Bucket {
  std::vector<at::Tensor> gradients;
  at::Tensor flat;  // undefined: a single gradient, without a copy
  Pending sum;
};

Bucket send(std::vector<at::Tensor> gradients, const Group& world) {
  if (gradients.size() == 1) {
    Pending sum = world.sum_async_(gradients[0]);
    return {std::move(gradients), {}, std::move(sum)};
  }
  std::vector<at::Tensor> parts;
  parts.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) parts.push_back(gradient.flatten());
  at::Tensor flat = at::cat(parts);
  Pending sum = world.sum_async_(flat);
  return {std::move(gradients), std::move(flat), std::move(sum)};
}

void receive(Bucket& bucket) {
  bucket.sum.wait_all();
  if (!bucket.flat.defined()) return;
  int64_t begin = 0;
  for (at::Tensor& gradient : bucket.gradients) {
    gradient.copy_(bucket.flat.narrow(0, begin, gradient.numel()).view_as(gradient));
    begin += gradient.numel();
  }
}

/// Returns the parameter's gradient, dense and in place; zeros if it has none.
at::Tensor ready_gradient(at::Tensor parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(parameter.detach());
  if (!gradient.is_contiguous()) gradient = gradient.contiguous();
  return gradient;
}

}  // namespace

void sum_gradients(const std::vector<NamedTensor>& parameters, const Group& world,
                   int64_t bucket_bytes) {
  if (world.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<Bucket> in_flight;
  std::vector<at::Tensor> gathered;
  int64_t gathered_bytes = 0;
  const auto flush = [&] {
    if (!gathered.empty()) in_flight.push_back(send(std::move(gathered), world));
    gathered.clear();
    gathered_bytes = 0;
  };
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    at::Tensor gradient = ready_gradient(parameter.tensor);
    const int64_t num_bytes = static_cast<int64_t>(gradient.nbytes());
    if (num_bytes >= bucket_bytes) {
      in_flight.push_back(send({gradient}, world));
      continue;
    }
    const bool fits = gathered_bytes + num_bytes <= bucket_bytes &&
                      (gathered.empty() || gathered[0].scalar_type() == gradient.scalar_type());
    if (!fits) flush();
    gathered.push_back(gradient);
    gathered_bytes += num_bytes;
  }
  flush();
  for (Bucket& bucket : in_flight) receive(bucket);
}

}  // namespace longspan
