#include "longspan/models/composite.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "longspan/models/family.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {
namespace {

constexpr const char* kTextConfig = "text_config";

const Family* composite_named(std::string_view model_type) {
  for (const Family* family : all_families()) {
    if (family->composite && model_type == family->composite->model_type) return family;
  }
  return nullptr;
}

/// Are there models of texts and pictures whose language model this is, or is it one?
bool may_have_parts(const ModelConfig& config) {
  return is_composite(config) || std::ranges::any_of(all_families(), [&](const Family* family) {
           return family->composite && config.model_type == family->model_type;
         });
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
  if (!is_composite(config) || !name.starts_with(kModelPrefix)) return name;
  return std::string(kLanguagePrefix) + name.substr(kModelPrefix.size());
}

std::string name_in_language_model(const ModelConfig& config, const std::string& stored) {
  if (!stored.starts_with(kLanguagePrefix) || !may_have_parts(config)) return stored;
  return std::string(kModelPrefix) + stored.substr(kLanguagePrefix.size());
}

bool is_kept_tensor(const ModelConfig& config, const std::string& stored) {
  return is_composite(config) && stored.starts_with(kVisionPrefix);
}

}  // namespace longspan
