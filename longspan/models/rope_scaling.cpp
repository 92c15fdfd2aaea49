#include "longspan/models/rope_scaling.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"
#include "longspan/models/composite.h"
#include "longspan/models/parse_model_config.h"

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, double> kLlama3Factors[] = {{"low_freq_factor", 1.0},
                                                             {"high_freq_factor", 4.0}};

/// Keys of config.json for each type of scaling that a run may ask for, besides the factor.
struct Stretch {
  RopeScaling::Type type;
  bool has_original_positions;
  std::span<const std::pair<const char*, double>> constants = {};
};
constexpr Stretch kStretches[] = {
    {RopeScaling::Type::kLinear, false},
    {RopeScaling::Type::kYarn, true},
    {RopeScaling::Type::kLlama3, true, kLlama3Factors},
};

const Stretch& stretch_named(const std::string& type) {
  for (const Stretch& stretch : kStretches) {
    if (type == name_of(stretch.type)) return stretch;
  }
  throw std::logic_error(fmt::format("rope_scaling: {} has no meaning", type));
}

/// Returns the number of positions that the model was pretrained with.
int64_t original_positions(const ModelConfig& config) {
  return config.rotary.scaling.original_max_position_embeddings > 0
             ? config.rotary.scaling.original_max_position_embeddings
             : config.max_position_embeddings;
}

}  // namespace

ModelConfig stretched(const ModelConfig& config, const std::string& type, int64_t row_length,
                      const std::string& source) {
  const int64_t original = original_positions(config);
  if (type.empty() || row_length <= original) return config;
  const int64_t factor = (row_length + original - 1) / original;
  Json scaling = {{"rope_type", type}, {"factor", static_cast<double>(factor)}};
  const Stretch& stretch = stretch_named(type);
  if (stretch.has_original_positions) scaling["original_max_position_embeddings"] = original;
  for (const auto& [key, value] : stretch.constants) scaling[key] = value;
  Json whole = parse_ordered_json(config.json, source);
  Json& json = language_keys(whole);
  // Which elements of a head are rotated, and by which axis, stays the same.
  for (const char* own : {"rope_scaling", "rope_parameters"}) {
    if (!json.contains(own) || !json.at(own).is_object()) continue;
    for (const char* key : {"partial_rotary_factor", "mrope_section", "mrope_interleaved"}) {
      if (json.at(own).contains(key)) scaling[key] = json.at(own).at(key);
    }
  }
  json["max_position_embeddings"] = original * factor;
  json.erase("original_max_position_embeddings");
  json.erase("rope_scaling");
  if (json.contains("rope_parameters")) {  // transformers 5
    scaling["rope_theta"] = config.rotary.theta;
    // Layers with a window keep their own rotation, if they have one.
    (config.has_rotary_by_kind ? json["rope_parameters"]["full_attention"]
                               : json["rope_parameters"]) = scaling;
  } else {
    json["rope_theta"] = config.rotary.theta;
    json["rope_scaling"] = scaling;
  }
  try {
    return parse_model_config(whole.dump(2) + "\n", source);
  } catch (const UserError& error) {
    throw UserError(fmt::format(
        "rope_scaling: {}: the model's positions cannot be stretched so. {}", type, error.what()));
  }
}

std::string describe_stretch(const ModelConfig& before, const ModelConfig& after,
                             const std::string& type, int64_t row_length) {
  if (type.empty()) return "";
  if (before.json == after.json) {
    return fmt::format(
        "rope_scaling: {} changes nothing: cutoff_len {} is no more than the {} positions that the "
        "model was made with.",
        type, row_length, original_positions(before));
  }
  const RopeScaling& own = before.rotary.scaling;
  const std::string instead =
      own.type == RopeScaling::Type::kDefault
          ? ""
          : fmt::format(" in place of its own ({}, factor {})", name_of(own.type), own.factor);
  return fmt::format("rope_scaling: {} with factor {}{}: {} positions become {}.", type,
                     after.rotary.scaling.factor, instead, original_positions(before),
                     after.max_position_embeddings);
}

}  // namespace longspan
