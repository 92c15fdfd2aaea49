#include "longspan/models/lora.h"

#include <ATen/ATen.h>
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
  }
  return parameters;
}

void add_lora(const at::Tensor& weight_OI, const at::Tensor& a_RI, const at::Tensor& b_OR,
              double scale) {
  const c10::NoGradGuard no_grad;
  const at::Tensor delta = at::mm(b_OR.to(at::kFloat), a_RI.to(at::kFloat));
  weight_OI.copy_(weight_OI.to(at::kFloat) + delta.mul_(scale));
}

at::Tensor own_rows(const ParameterSpec& projection, const at::Tensor& b_OR) {
  return b_OR.narrow(0, lora_b_begin(projection), projection.shape.at(0));
}

void merge_lora(const ModelSpec& model, std::vector<NamedTensor>& parameters, double scale) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : parameters) by_name[name] = tensor;
  std::set<std::string> merged;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (parameter.lora_target.empty()) continue;
    const std::string a_name = lora_a_name(parameter), b_name = lora_b_name(parameter);
    const auto a = by_name.find(a_name);
    if (a == by_name.end()) continue;
    add_lora(by_name.at(parameter.name), a->second, own_rows(parameter, by_name.at(b_name)), scale);
    merged.insert({a_name, b_name});
  }
  std::erase_if(parameters, [&](const NamedTensor& p) { return merged.contains(p.name); });
}

}  // namespace longspan
