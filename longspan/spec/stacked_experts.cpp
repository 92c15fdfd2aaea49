#include "longspan/spec/stacked_experts.h"

#include <fmt/format.h>

#include "longspan/spec/layer_parameters.h"

namespace longspan {

std::vector<StackedExperts> stacked_experts(const ModelSpec& model, int64_t layer) {
  const MixtureOfExpertsSpec* const experts = experts_of(model.layer(layer));
  if (experts == nullptr || experts->stacked) return {};
  const int64_t E = experts->num_experts, I = experts->expert_size, D = model.hidden_size;
  const auto named = [&](const std::string& rest) {
    return layer_parameter_name(layer, "mlp.experts." + rest);
  };
  StackedExperts gate_up{named("gate_up_proj"), {E, 2 * I, D}, {}},
      down{named("down_proj"), {E, D, I}, {}};
  for (int64_t expert = 0; expert < E; ++expert) {
    gate_up.parameters.push_back(named(fmt::format("{}.gate_proj.weight", expert)));
    gate_up.parameters.push_back(named(fmt::format("{}.up_proj.weight", expert)));
    down.parameters.push_back(named(fmt::format("{}.down_proj.weight", expert)));
  }
  return {gate_up, down};
}

}  // namespace longspan
