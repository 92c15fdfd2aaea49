#include "longspan/session/gradient_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace longspan {
namespace {

/// Returns the parameter's gradient, dense and in place; zeros if it has none.
at::Tensor ready_gradient(at::Tensor parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(parameter.detach());
  if (!gradient.is_contiguous()) gradient = gradient.contiguous();
  return gradient;
}

int unit_of_sum(const ParameterSpec& parameter) {
  return parameter.part == ModelPart::kLanguage ? parameter.unit : kAlwaysThere;
}

at::Device device_of_sums(const std::vector<NamedTensor>& parameters) {
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().tensor.device();
}

int top_unit_of_sums(const std::vector<NamedTensor>& parameters, const ParameterTable& specs) {
  int top = kEmbeddingUnit;
  for (const NamedTensor& parameter : parameters) {
    top = std::max(top, unit_of_sum(specs.of(parameter.name)));
  }
  return top;
}

}  // namespace

WholeGradientSums::WholeGradientSums(std::vector<NamedTensor> parameters,
                                     const ParameterTable& specs, const Group& world,
                                     ParameterHooks* others, int64_t bucket_bytes)
    : world_(world),
      others_(others),
      side_(device_of_sums(parameters)),
      last_(top_unit_of_sums(parameters, specs)) {
  Bucket gathered{.parameters = {}, .unit = kAlwaysThere};
  int64_t gathered_bytes = 0;
  const auto flush = [&] {
    if (!gathered.parameters.empty()) buckets_.push_back(std::move(gathered));
    gathered = {.parameters = {}, .unit = kAlwaysThere};
    gathered_bytes = 0;
  };
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    const int unit = unit_of_sum(specs.of(name));
    const auto num_bytes = static_cast<int64_t>(tensor.nbytes());
    if (num_bytes >= bucket_bytes) {
      buckets_.push_back({.parameters = {tensor}, .unit = unit});
      continue;
    }
    const bool fits = gathered_bytes + num_bytes <= bucket_bytes &&
                      (gathered.parameters.empty() ||
                       gathered.parameters.front().scalar_type() == tensor.scalar_type());
    if (!fits) flush();
    gathered.unit = gathered.parameters.empty() ? unit : std::min(gathered.unit, unit);
    gathered.parameters.push_back(tensor);
    gathered_bytes += num_bytes;
  }
  flush();
  std::ranges::stable_sort(buckets_, std::greater(), &Bucket::unit);
}

void WholeGradientSums::before(int unit, Use use, int next) {
  if (others_ != nullptr) others_->before(unit, use, next);
  last_.before(unit, use);
}

void WholeGradientSums::after(int unit, Use use) {
  if (others_ != nullptr) others_->after(unit, use);
  if (use == Use::kForward) return;
  last_.after(unit, use);
  if (!last_.is_complete(unit)) return;
  receive_all();  // the backward of this unit has hidden the sums of the unit before
  start_from(unit);
}

void WholeGradientSums::start_sums() {
  last_.end();
  start_from(kAlwaysThere);
}

void WholeGradientSums::finish() {
  start_sums();
  abandon();
}

void WholeGradientSums::abandon() {
  last_.end();
  receive_all();
  side_.join();
  next_ = 0;
}

void WholeGradientSums::start_from(int unit) {
  if (world_.size() == 1) return;
  for (; next_ < buckets_.size() && buckets_[next_].unit >= unit; ++next_) start(buckets_[next_]);
}

void WholeGradientSums::start(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : bucket.parameters) {
    bucket.gradients.push_back(ready_gradient(parameter));
  }
  side_.run([&] {
    if (bucket.gradients.size() > 1) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& gradient : bucket.gradients) parts.push_back(gradient.flatten());
      bucket.flat = at::cat(parts);
    }
    bucket.sum = world_.sum_async_(bucket.flat.defined() ? bucket.flat : bucket.gradients[0]);
  });
  in_flight_.push_back(&bucket);
}

void WholeGradientSums::receive_all() {
  if (in_flight_.empty()) return;
  const at::NoGradGuard no_grad;
  side_.run([&] {
    for (Bucket* bucket : std::exchange(in_flight_, {})) receive(*bucket);
  });
}

void WholeGradientSums::receive(Bucket& bucket) {
  std::exchange(bucket.sum, std::nullopt)->wait_all();
  const at::Tensor flat = std::exchange(bucket.flat, {});
  const std::vector<at::Tensor> gradients = std::exchange(bucket.gradients, {});
  if (!flat.defined()) return;
  int64_t begin = 0;
  for (const at::Tensor& gradient : gradients) {
    gradient.copy_(flat.narrow(0, begin, gradient.numel()).view_as(gradient));
    begin += gradient.numel();
  }
}

void sum_gradients(const std::vector<NamedTensor>& parameters, const ParameterTable& specs,
                   const Group& world, int64_t bucket_bytes) {
  WholeGradientSums(parameters, specs, world, /*others=*/nullptr, bucket_bytes).finish();
}

}  // namespace longspan
