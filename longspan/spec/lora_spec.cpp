#include "longspan/spec/lora_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"

namespace longspan {

double LoraShape::scale() const {
  return rank_stabilized ? alpha / std::sqrt(static_cast<double>(r))
                         : alpha / static_cast<double>(r);
}

namespace {

/// Full name of the module that holds the parameter.
std::string module_of(const ParameterSpec& parameter) {
  return parameter.name.substr(0, parameter.name.rfind('.'));
}

bool may_be_whole(const ParameterSpec& parameter) {
  return parameter.role == ParameterRole::kEmbedding || parameter.role == ParameterRole::kHead ||
         parameter.role == ParameterRole::kNorm;
}

}  // namespace

bool LoraShape::trains_whole(const ParameterSpec& parameter) const {
  if (whole_modules.empty() || !may_be_whole(parameter)) return false;
  const std::string module = module_of(parameter);
  return std::ranges::any_of(whole_modules,
                             [&](const std::string& end) { return module.ends_with(end); });
}

std::set<std::string> whole_modules_from(const std::string& target, const ModelSpec& model) {
  const std::vector<std::string> names = split_names(target);
  const auto refuse = [&](const std::string& what) {
    throw UserError(fmt::format("additional_target: {}", what));
  };
  if (!names.empty() && model.vision) {
    refuse(
        "a model that takes pictures trains no modules beside its adapters here, also none of "
        "resize_vocab. Remove it, or set finetuning_type: full.");
  }
  for (const std::string& name : names) {
    bool found = false;
    for (const ParameterSpec& parameter : parameters_of(model)) {
      if (!module_of(parameter).ends_with(name)) continue;
      found = true;
      if (!may_be_whole(parameter)) {
        refuse(
            fmt::format("{} names {}; an embedding (embed_tokens), a head (lm_head) and norms "
                        "are supported. Name those, or remove it.",
                        name, module_of(parameter)));
      }
    }
    if (!found) {
      refuse(
          fmt::format("the model has no module whose name ends in {}. Modules are embed_tokens, "
                      "norm, input_layernorm, ...; and lm_head, unless it is the embedding.",
                      name));
    }
  }
  return {names.begin(), names.end()};
}

bool trains_tied_head(const ModelSpec& model, const std::set<std::string>& whole_modules) {
  LoraShape shape;
  shape.whole_modules = whole_modules;
  return std::ranges::any_of(parameters_of(model), [&](const ParameterSpec& parameter) {
    return parameter.role == ParameterRole::kEmbedding && model.is_head(parameter.role) &&
           shape.trains_whole(parameter);
  });
}

namespace {

/// Possible adapters of a model's experts.
struct ExpertTargets {
  std::vector<std::string> all;  // lora_targets() of experts
  /// Targets whose adapters PEFT loads as one, since a stacked tensor in the files has several of
  /// their rows (ParameterSpec::stored_in_stack).
  std::vector<std::string> joined;
};

ExpertTargets expert_targets(const ModelSpec& model) {
  ExpertTargets targets;
  std::map<std::string, std::vector<std::string>> of_stack;  // keyed by the stack's name
  const auto add = [](std::vector<std::string>& names, const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (const ParameterSpec& parameter : parameters_of_kinds(model)) {
    if (!parameter.expert || parameter.lora_target.empty()) continue;
    add(targets.all, parameter.lora_target);
    if (!parameter.stored_in_stack) continue;
    std::vector<std::string>& stacked = of_stack[parameter.stored_in_stack->tensor];
    add(stacked, parameter.lora_target);
    if (stacked.size() < 2) continue;
    for (const std::string& name : stacked) add(targets.joined, name);
  }
  return targets;
}

}  // namespace

std::set<std::string> lora_modules_from(const std::string& target, const ModelSpec& model,
                                        const std::set<ModelPart>& parts) {
  const std::vector<std::string> named = lora_targets(model, parts);
  std::set<ModelPart> of_all = parts;
  of_all.erase(ModelPart::kProjector);  // as in LLaMA-Factory
  const std::vector<std::string> all = lora_targets(model, of_all);
  std::set<std::string> modules;
  std::istringstream names(target);
  for (std::string name; std::getline(names, name, ',');) {
    name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
    if (name == "all") {
      modules.insert(all.begin(), all.end());
    } else if (std::find(named.begin(), named.end(), name) != named.end()) {
      modules.insert(name);
    } else {
      throw UserError(fmt::format("lora_target: the model has no module {}; choose from {}, or all",
                                  name.empty() ? "\"\"" : name, fmt::join(named, ", ")));
    }
  }
  if (modules.empty()) {
    throw UserError(
        fmt::format("lora_target names nothing; choose from {}, or all", fmt::join(named, ", ")));
  }
  return modules;
}

void require_in_peft(const ModelSpec& model, const LoraShape& shape) {
  if (shape.dropout > 0 && shape.parts != std::set{ModelPart::kLanguage}) {
    throw UserError(
        "lora_dropout: adapters of a vision tower or projector have none here. Set it to 0, or "
        "leave these parts frozen.");
  }
  if (shape.decomposed && shape.parts != std::set{ModelPart::kLanguage}) {
    throw UserError(
        "use_dora: adapters of a vision tower or projector have no magnitudes here. Leave these "
        "parts frozen, or remove the key.");
  }
  const ExpertTargets targets = expert_targets(model);
  const auto is_given = [&](const std::string& name) { return shape.modules.contains(name); };
  if (std::ranges::none_of(targets.all, is_given)) return;
  const auto refuse = [&](const std::string& what) {
    std::vector<std::string> others = lora_targets(model);
    std::erase_if(others, [&](const std::string& target) {
      return std::ranges::find(targets.all, target) != targets.all.end();
    });
    throw UserError(fmt::format("lora_target: adapters of experts {}. Take lora_target: {}", what,
                                fmt::join(others, ",")));
  };
  const bool some_joined = std::ranges::any_of(targets.joined, is_given);
  const std::string joined = fmt::format("{}", fmt::join(targets.joined, " and "));
  if (some_joined && !std::ranges::all_of(targets.joined, is_given)) {
    refuse(
        fmt::format("need both {} or neither, since PEFT loads them as one; or name both", joined));
  }
  if (shape.rank_stabilized && some_joined) {
    refuse(fmt::format(
        "are not supported with use_rslora, since PEFT scales {}, which it loads as one of twice "
        "the rank, otherwise",
        joined));
  }
  if (shape.decomposed) {
    refuse("are not supported with use_dora, since PEFT has none for them; or remove it");
  }
  if (shape.dropout > 0) {
    refuse("are not supported with lora_dropout, since PEFT has none for them; or set it to 0");
  }
}

std::vector<std::string> passed_over(const ModelSpec& model, const std::set<std::string>& modules) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : parameters_of_kinds(model)) {
    const std::string& name = parameter.passed_over_target;
    if (modules.contains(name) && std::ranges::find(names, name) == names.end()) {
      names.push_back(name);
    }
  }
  return names;
}

ModelSpec without_latent_exchange(ModelSpec model, const LoraShape& shape) {
  if (shape.dropout <= 0) return model;
  for (int64_t i = 0; i < std::ssize(model.pattern); ++i) {
    const bool drops = std::ranges::any_of(layer_parameters(model, i), [&](const auto& parameter) {
      return parameter.expands_latents && shape.modules.contains(parameter.lora_target);
    });
    AttentionSpec* const attention = attention_in(model.pattern[i].mixer);
    if (drops && attention != nullptr) attention->latent_dim.reset();
  }
  return model;
}

std::vector<std::string> excluded_linears(const ModelSpec& model, const LoraShape& shape) {
  std::vector<std::string> names;
  if (!model.vision) return names;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (parameter.part != ModelPart::kLanguage &&
        shape.modules.contains(parameter.passed_over_target)) {
      names.push_back(parameter.name.substr(0, parameter.name.rfind(".weight")));
    }
    if (!shape.modules.contains(parameter.lora_target) || shape.adapts(parameter)) continue;
    names.push_back(parameter.adapted_linear);
  }
  return names;
}

std::vector<ParameterSpec> lora_parameters_of(const ModelSpec& model, const LoraShape& shape) {
  std::vector<ParameterSpec> matrices;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (!shape.adapts(parameter) || !begins_adapter(parameter)) continue;
    matrices.push_back(lora_a_of(parameter, shape.r));
    matrices.push_back(lora_b_of(parameter, shape.r));
    if (shape.decomposed) matrices.push_back(lora_magnitude_of(parameter));
  }
  return matrices;
}

}  // namespace longspan
