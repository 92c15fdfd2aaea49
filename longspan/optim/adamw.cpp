#include "longspan/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cctype>

namespace longspan {

bool is_decayed(const std::string& parameter_name) {
  std::string name = parameter_name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (name.find("bias") != std::string::npos || name.find("layernorm") != std::string::npos ||
      name.find("rmsnorm") != std::string::npos) {
    return false;
  }
  // A whole name part that is, or ends in, "norm": model.norm.weight, self_attn.q_norm.weight.
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part == "norm" || part.ends_with("_norm")) return false;
    begin = end + 1;
  }
  return true;
}

AdamW::AdamW(const std::vector<NamedTensor>& parameters, const AdamWOptions& options)
    : options_(options) {
  groups_[0].weight_decay = options.weight_decay;
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    const at::Tensor values = parameter.tensor.detach();
    ParameterGroup& group = groups_[is_decayed(parameter.name) ? 0 : 1];
    group.parameters.push_back(parameter.tensor);
    group.first_moments.push_back(at::zeros_like(values));
    group.second_moments.push_back(at::zeros_like(values));
    // The fused kernel wants one fp32 counter for each parameter.
    group.steps.push_back(at::zeros({}, values.options().dtype(at::kFloat)));
  }
}

void AdamW::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  for (ParameterGroup& group : groups_) {
    std::vector<at::Tensor> parameters, gradients, first, second, steps;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const at::Tensor& gradient = group.parameters[i].grad();
      if (!gradient.defined()) continue;
      parameters.push_back(group.parameters[i]);
      gradients.push_back(gradient);
      first.push_back(group.first_moments[i]);
      second.push_back(group.second_moments[i]);
      steps.push_back(group.steps[i]);
    }
    if (parameters.empty()) continue;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate, options_.beta1, options_.beta2, group.weight_decay,
                      options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }
}

void AdamW::zero_grad() {
  for (ParameterGroup& group : groups_) {
    for (at::Tensor& parameter : group.parameters) parameter.mutable_grad().reset();
  }
}

}  // namespace longspan
