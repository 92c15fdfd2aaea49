#include "longspan/models/composite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/models/parameter_count.h"

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

bool takes_pictures(const ModelConfig& config) {
  return is_composite(config) &&
         family_of_type(config.model_type)->composite->read_vision != nullptr;
}

ModelConfig with_pictures(const ModelConfig& config) {
  const Family* family = family_of_type(config.model_type);
  if (!takes_pictures(config)) {
    throw UserError(fmt::format(
        "The data set has pictures, and model_type {} takes none here; {} do. Remove the columns "
        "of pictures, or take such a model.",
        config.model_type, describe_models_of_pictures()));
  }
  const nlohmann::json json = parse_json(config.json, "config.json");
  const JsonObject whole(json, "config.json");
  const JsonObject keys = whole.object("vision_config");
  ModelConfig both = config;
  both.spec.vision = family->composite->read_vision({keys, whole, config.spec.hidden_size});
  if (both.spec.vision->output_size != config.spec.hidden_size) {
    keys.fail(fmt::format("the tower's features have {} numbers, and the language model {}",
                          both.spec.vision->output_size, config.spec.hidden_size));
  }
  parameter_count(both.spec);
  return both;
}

PictureTokens picture_tokens(const ModelConfig& config) {
  const nlohmann::json json = parse_json(config.json, "config.json");
  const JsonObject whole(json, "config.json");
  const CompositeKind& composite = *family_of_type(config.model_type)->composite;
  const PictureTokens& fallback = composite.default_tokens;
  const PictureTokenKeys& keys = composite.token_keys;
  const auto token = [&](const char* name, int64_t other) -> int64_t {
    if (name == nullptr) return -1;
    const auto id = whole.get<int64_t>(name, other);
    if (id < 0 || id >= config.spec.vocab_size) {
      whole.fail(fmt::format("{} {} is outside of the vocabulary of {}", name, id,
                             config.spec.vocab_size));
    }
    return id;
  };
  return {.image = token(keys.image, fallback.image),
          .video = token(keys.video, fallback.video),
          .start = token(keys.start, fallback.start),
          .end = token(keys.end, fallback.end)};
}

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
  for (const auto& [own, stored] : names.tower) {
    if (const auto in_files = renamed(name, own, stored)) return *in_files;
  }
  if (const auto stored = renamed(name, kModelPrefix, names.model)) return *stored;
  return renamed(name, kHeadPrefix, names.head).value_or(name);
}

std::string name_in_language_model(const ModelConfig& config, const std::string& stored) {
  const CompositeNames* names = names_of(config);
  if (names == nullptr) return stored;
  for (const auto& [own, in_files] : names->tower) {
    if (!config.spec.vision) break;
    if (const auto name = renamed(stored, in_files, own)) return *name;
  }
  if (!names->module_model.empty()) {
    if (const auto name = renamed(stored, names->module_model, kModelPrefix)) return *name;
  }
  if (const auto name = renamed(stored, names->model, kModelPrefix)) return *name;
  return renamed(stored, names->head, kHeadPrefix).value_or(stored);
}

std::string name_in_adapter(const ModelConfig& config, const std::string& name) {
  const Family* family = family_of_type(config.model_type);
  const bool of_whole = is_composite(config) && (config.spec.vision || !family->may_be_alone);
  if (!of_whole) return name;
  const CompositeNames& names = family->composite->names;
  if (const auto module = renamed(name, kVisionPrefix, names.module_vision)) return *module;
  return renamed(name, kModelPrefix, names.module_model).value_or(name);
}

bool is_tower_module(const ModelConfig& config, const std::string& stored) {
  if (!takes_pictures(config)) return false;
  return std::ranges::any_of(names_of(config)->tower, [&](const CompositeNames::Prefix& prefix) {
    return stored.starts_with(prefix.stored);
  });
}

bool copies_vision(const ModelConfig& config) {
  return is_composite(config) && !config.spec.vision;
}

std::string describe_copied_tensors(const ModelConfig& config) {
  std::vector<std::string> beginnings;
  for (const std::string_view beginning : names_of(config)->pictures) {
    beginnings.push_back(fmt::format("{}*", beginning));
  }
  return fmt::format("{}", fmt::join(beginnings, ", "));
}

bool is_copied_tensor(const ModelConfig& config, const std::string& stored) {
  return copies_vision(config) &&
         std::ranges::any_of(names_of(config)->pictures, [&](std::string_view beginning) {
           return stored.starts_with(beginning);
         });
}

}  // namespace longspan
