#include "longspan/models/composite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "longspan/models/family.h"

namespace longspan {
namespace {

constexpr const char* kTextConfig = "text_config";

const Family* composite_named(std::string_view model_type) {
  for (const Family* family : all_families()) {
    if (family->composite && model_type == family->composite->model_type) return family;
  }
  return nullptr;
}

/// Returns the tensor names of the composite models with this language model, or of this composite
/// model; null if there are none.
const CompositeNames* names_of(const ModelConfig& config) {
  const Family* family = family_of_type(config.model_type);
  return family != nullptr && family->composite ? &family->composite->names : nullptr;
}

/// Replaces the prefix `from` by `to`; nullopt if `name` has another prefix.
std::optional<std::string> renamed(const std::string& name, std::string_view from,
                                   std::string_view to) {
  if (!name.starts_with(from)) return std::nullopt;
  return std::string(to) + name.substr(from.size());
}

template <typename Json>
Json& keys_in(Json& config) {
  if (!config.is_object() || !config.contains("model_type") ||
      !config.at("model_type").is_string() || !config.contains(kTextConfig) ||
      !config.at(kTextConfig).is_object()) {
    return config;
  }
  const auto model_type = config.at("model_type").template get<std::string>();
  return composite_named(model_type) == nullptr ? config : config.at(kTextConfig);
}

}  // namespace

bool is_composite(const ModelConfig& config) {
  return composite_named(config.model_type) != nullptr;
}

nlohmann::ordered_json& language_keys(nlohmann::ordered_json& config) { return keys_in(config); }
const nlohmann::json& language_keys(const nlohmann::json& config) { return keys_in(config); }

std::string dtype_in(const nlohmann::json& config) {
  for (const nlohmann::json* keys : {&config, &language_keys(config)}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (!keys->is_object() || !keys->contains(key) || !keys->at(key).is_string()) continue;
      return keys->at(key).get<std::string>();
    }
  }
  return "";
}

std::string name_in_files(const ModelConfig& config, const std::string& name) {
  if (!is_composite(config)) return name;
  const CompositeNames& names = *names_of(config);
  if (const auto stored = renamed(name, kModelPrefix, names.model)) return *stored;
  return renamed(name, kHeadPrefix, names.head).value_or(name);
}

std::string name_in_language_model(const ModelConfig& config, const std::string& stored) {
  const CompositeNames* names = names_of(config);
  if (names == nullptr) return stored;
  if (const auto name = renamed(stored, names->model, kModelPrefix)) return *name;
  return renamed(stored, names->head, kHeadPrefix).value_or(stored);
}

std::string describe_copied_tensors(const ModelConfig& config) {
  std::vector<std::string> beginnings;
  for (const std::string_view beginning : names_of(config)->pictures) {
    beginnings.push_back(fmt::format("{}*", beginning));
  }
  return fmt::format("{}", fmt::join(beginnings, ", "));
}

bool is_copied_tensor(const ModelConfig& config, const std::string& stored) {
  return is_composite(config) &&
         std::ranges::any_of(names_of(config)->pictures, [&](std::string_view beginning) {
           return stored.starts_with(beginning);
         });
}

}  // namespace longspan
