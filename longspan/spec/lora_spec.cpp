#include "longspan/spec/lora_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "longspan/config/user_error.h"

namespace longspan {

double LoraShape::scale() const {
  return rank_stabilized ? alpha / std::sqrt(static_cast<double>(r))
                         : alpha / static_cast<double>(r);
}

std::set<std::string> lora_modules_from(const std::string& target, const ModelSpec& model) {
  const std::vector<std::string> all = lora_targets(model);
  std::set<std::string> modules;
  std::istringstream names(target);
  for (std::string name; std::getline(names, name, ',');) {
    name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
    if (name == "all") {
      modules.insert(all.begin(), all.end());
    } else if (std::find(all.begin(), all.end(), name) != all.end()) {
      modules.insert(name);
    } else {
      throw UserError(fmt::format("lora_target: the model has no module {}; choose from {}, or all",
                                  name.empty() ? "\"\"" : name, fmt::join(all, ", ")));
    }
  }
  if (modules.empty()) {
    throw UserError(
        fmt::format("lora_target names nothing; choose from {}, or all", fmt::join(all, ", ")));
  }
  return modules;
}

void require_in_peft(const ModelSpec& model, const LoraShape& shape) {
  const bool gate = shape.modules.contains("gate_proj"), up = shape.modules.contains("up_proj");
  if (!gate && !up && !shape.modules.contains("gate_up_proj") &&
      !shape.modules.contains("down_proj")) {
    return;
  }
  bool has_experts = false, has_others = false;
  for (const LayerSpec& layer : model.pattern) {
    const MixtureOfExpertsSpec* const experts = experts_of(layer);
    has_experts = has_experts || experts != nullptr;
    has_others = has_others || experts == nullptr || experts->has_shared();
  }
  if (!has_experts) return;
  const auto refuse = [&](const std::string& what) {
    std::vector<std::string> others = lora_targets(model);
    std::erase_if(others, [](const std::string& target) {
      return target == "gate_proj" || target == "up_proj" || target == "down_proj";
    });
    throw UserError(fmt::format("lora_target: adapters of experts {}. Take lora_target: {}", what,
                                fmt::join(others, ",")));
  };
  if (has_others) {
    refuse(
        "are not supported in a model that also has MLPs that all tokens go through: PEFT loads "
        "nothing of theirs where experts have adapters");
  }
  if (gate != up) {
    refuse(
        "need both gate_proj and up_proj or neither, since PEFT loads them as one; or name both");
  }
  if (shape.rank_stabilized && gate) {
    refuse(
        "are not supported with use_rslora, since PEFT scales gate_proj and up_proj, which it "
        "loads as one of twice the rank, otherwise");
  }
  if (shape.dropout > 0) {
    refuse("are not supported with lora_dropout, since PEFT has none for them; or set it to 0");
  }
}

ModelSpec with_latents_kept(ModelSpec model, const LoraShape& shape) {
  if (shape.dropout <= 0 || !shape.modules.contains(kExpandsLatents)) return model;
  for (LayerSpec& layer : model.pattern) {
    if (auto* mixer = std::get_if<LatentAttentionSpec>(&layer.mixer)) {
      mixer->attention.latent_dim.reset();
    }
  }
  return model;
}

std::vector<ParameterSpec> lora_parameters_of(const ModelSpec& model, const LoraShape& shape) {
  std::vector<ParameterSpec> matrices;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (!shape.modules.contains(parameter.lora_target) || !begins_adapter(parameter)) continue;
    matrices.push_back(lora_a_of(parameter, shape.r));
    matrices.push_back(lora_b_of(parameter, shape.r));
  }
  return matrices;
}

}  // namespace longspan
