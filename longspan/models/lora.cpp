#include "longspan/models/lora.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <map>
#include <set>

#include "longspan/base/fnv1a.h"
#include "longspan/kernels/dropout.h"

namespace longspan {
std::vector<NamedTensor> new_lora_parameters(const ModelSpec& model, const LoraShape& shape,
                                             uint64_t seed) {
  std::vector<NamedTensor> parameters;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (!shape.adapts(parameter) || !begins_adapter(parameter)) continue;
    const ParameterSpec a_spec = lora_a_of(parameter, shape.r),
                        b_spec = lora_b_of(parameter, shape.r);
    const at::Tensor a = at::empty(a_spec.shape, at::kFloat);
    float* data = a.mutable_data_ptr<float>();
    const uint64_t key = mix_seed(seed, fnv1a(parameter.adapted_linear));
    const double bound = a_spec.init.scale;
    for (int64_t i = 0; i < a.numel(); ++i) {
      const double u = static_cast<double>(mix_seed(key, static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
      data[i] = static_cast<float>((2 * u - 1) * bound);
    }
    parameters.push_back({a_spec.name, a});
    parameters.push_back({b_spec.name, at::zeros(b_spec.shape, at::kFloat)});
    if (!shape.decomposed) continue;
    const ParameterSpec spec = lora_magnitude_of(parameter);
    parameters.push_back({spec.name, at::zeros(spec.shape, at::kFloat)});
  }
  return parameters;
}

namespace {

struct Decomposition {
  at::Tensor u_OR, s_R, v_RI;
};

/// The randomized decomposition of arXiv 0909.4061 (algorithms 4.4 and 5.1), for the larger
/// singular values of a matrix with at least as many rows as columns.
Decomposition randomized_svd(const at::Tensor& x_OI, int64_t r, int64_t iterations, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto basis = [](const at::Tensor& x) { return std::get<0>(at::linalg_qr(x)); };
  const at::Tensor start_IR = at::randn({x_OI.size(1), r}, generator, x_OI.options());
  at::Tensor q_OR = basis(at::mm(x_OI, start_IR));
  for (int64_t i = 0; i < iterations; ++i) {
    q_OR = basis(at::mm(x_OI, basis(at::mm(x_OI.t(), q_OR))));
  }
  const auto [u, s, v] = at::linalg_svd(at::mm(q_OR.t(), x_OI), /*full_matrices=*/false);
  return {at::mm(q_OR, u), s, v};
}

}  // namespace

LowRank principal_part(const at::Tensor& weight_OI, int64_t r, double scale, int64_t iterations,
                       uint64_t seed) {
  const c10::NoGradGuard no_grad;
  const at::Tensor x_OI = weight_OI.to(at::kFloat);
  Decomposition parts;
  if (iterations < 0) {
    const auto [u, s, v] = at::linalg_svd(x_OI, /*full_matrices=*/false);
    parts = {u.narrow(1, 0, r), s.narrow(0, 0, r), v.narrow(0, 0, r)};
  } else if (x_OI.size(0) >= x_OI.size(1)) {
    parts = randomized_svd(x_OI, r, iterations, seed);
  } else {
    const Decomposition other = randomized_svd(x_OI.t(), r, iterations, seed);
    parts = {other.v_RI.t(), other.s_R, other.u_OR.t()};
  }
  const at::Tensor root_R = (parts.s_R / scale).sqrt();
  return {(root_R.unsqueeze(1) * parts.v_RI).contiguous(), (parts.u_OR * root_R).contiguous()};
}

void add_lora(const at::Tensor& weight_OI, const at::Tensor& a_RI, const at::Tensor& b_OR,
              double scale, const at::Tensor& magnitude_O) {
  const c10::NoGradGuard no_grad;
  const at::Tensor delta = at::mm(b_OR.to(at::kFloat), a_RI.to(at::kFloat));
  at::Tensor sum_OI = weight_OI.to(at::kFloat) + delta.mul_(scale);
  if (magnitude_O.defined()) {
    const at::Tensor lengths_O = at::linalg_vector_norm(sum_OI, 2, {1});
    sum_OI.mul_((magnitude_O.to(at::kFloat) / lengths_O).unsqueeze(1));
  }
  weight_OI.copy_(sum_OI);
}

at::Tensor own_rows(const ParameterSpec& projection, const at::Tensor& b_OR) {
  if (!b_OR.defined()) return b_OR;
  return b_OR.narrow(0, lora_b_begin(projection), projection.shape.at(0));
}

void merge_lora(const ModelSpec& model, std::vector<NamedTensor>& parameters, double scale) {
  std::map<std::string, at::Tensor> by_name;
  std::set<std::string> merged;
  {
    const c10::NoGradGuard no_grad;
    for (const auto& [name, tensor] : parameters) {
      const auto [place, is_new] = by_name.try_emplace(name, tensor);
      if (!is_new) place->second.copy_(tensor);
    }
  }
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (parameter.lora_target.empty()) continue;
    const std::string a_name = lora_a_name(parameter), b_name = lora_b_name(parameter),
                      magnitude_name = lora_magnitude_name(parameter);
    const auto a = by_name.find(a_name);
    if (a == by_name.end()) continue;
    const auto magnitude = by_name.find(magnitude_name);
    add_lora(by_name.at(parameter.name), a->second, own_rows(parameter, by_name.at(b_name)), scale,
             own_rows(parameter, magnitude == by_name.end() ? at::Tensor() : magnitude->second));
    merged.insert({a_name, b_name, magnitude_name});
  }
  std::erase_if(parameters, [&](const NamedTensor& p) {
    return merged.contains(p.name) || !p.tensor.is_same(by_name.at(p.name));
  });
}

}  // namespace longspan
