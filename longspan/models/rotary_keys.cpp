#include "longspan/models/rotary_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "longspan/models/layer_keys.h"

namespace longspan {
namespace {

using Type = RopeScaling::Type;

Type type_of(const JsonObject& rope, const RotaryDefaults& defaults) {
  const auto name = rope.get<std::string>("rope_type", rope.get<std::string>("type", "default"));
  std::vector<std::string_view> names;
  for (const auto& [known, type] : defaults.types) {
    if (known == name) return type;
    names.push_back(known);
  }
  rope.fail(fmt::format("rope_type {} is not supported; {} are. Take a model that has one of these",
                        name, fmt::join(names, ", ")));
}

/// Reads a scaling from one JSON object. `keys`: the whole file.
class ScalingReader {
 public:
  ScalingReader(const JsonObject& keys, const JsonObject& rope, const RotaryDefaults& defaults,
                int64_t max_positions)
      : keys_(keys), rope_(rope), defaults_(defaults), max_positions_(max_positions) {}

  RopeScaling read() const {
    RopeScaling out = read_type(type_of(rope_, defaults_));
    // Latent attention uses it with every scaling, as in transformers.
    if (out.type != Type::kDefault) out.mscale_all_dim = rope_.optional<double>("mscale_all_dim");
    if (!(out.factor > 0)) {
      rope_.fail(fmt::format("factor is {}, it must be positive", out.factor));
    }
    return out;
  }

 private:
  RopeScaling read_type(Type type) const {
    switch (type) {
      case Type::kDefault:
        return {};
      case Type::kLinear:
        return {.type = type, .factor = rope_.get<double>("factor")};
      case Type::kLlama3:
        return llama3();
      case Type::kYarn:
        return yarn();
      case Type::kLongrope:
        return longrope();
    }
    rope_.fail("there is no such rope type");
  }

  RopeScaling llama3() const {
    RopeScaling out{.type = Type::kLlama3, .factor = rope_.get<double>("factor")};
    out.original_max_position_embeddings = original_positions();
    out.low_freq_factor = rope_.get<double>("low_freq_factor");
    out.high_freq_factor = rope_.get<double>("high_freq_factor");
    if (!(out.low_freq_factor > 0) || !(out.high_freq_factor > out.low_freq_factor)) {
      rope_.fail("0 < low_freq_factor < high_freq_factor must hold");
    }
    return out;
  }

  RopeScaling yarn() const {
    RopeScaling out{.type = Type::kYarn};
    out.original_max_position_embeddings = original_positions();
    out.factor = factor_over(out.original_max_position_embeddings);
    // 0 means the default here, as in transformers.
    if (const double fast = rope_.get<double>("beta_fast", 0.0); fast != 0) out.beta_fast = fast;
    if (const double slow = rope_.get<double>("beta_slow", 0.0); slow != 0) out.beta_slow = slow;
    out.attention_factor = rope_.optional<double>("attention_factor");
    out.mscale = rope_.optional<double>("mscale");
    out.truncate = rope_.get<bool>("truncate", true);
    return out;
  }

  RopeScaling longrope() const {
    RopeScaling out{.type = Type::kLongrope};
    out.original_max_position_embeddings = original_positions();
    if (out.original_max_position_embeddings < 2) {
      rope_.fail("original_max_position_embeddings must be at least 2");  // divides by its log
    }
    out.factor = factor_over(out.original_max_position_embeddings);
    out.attention_factor = rope_.optional<double>("attention_factor");
    out.short_factors = factors("short_factor");
    out.long_factors = factors("long_factor");
    return out;
  }

  std::vector<double> factors(const char* key) const {
    auto factors = rope_.get<std::vector<double>>(key);
    if (std::ranges::any_of(factors, [](double factor) { return !(factor > 0); })) {
      rope_.fail(fmt::format("{} must be positive numbers", key));
    }
    return factors;
  }

  double factor_over(int64_t original) const {
    return rope_.get<double>("factor",
                             static_cast<double>(max_positions_) / static_cast<double>(original));
  }

  int64_t original_positions() const {
    const char* original = "original_max_position_embeddings";
    if (keys_.has(original)) return positive(keys_, original, kMostPositions);
    if (defaults_.original_positions) return *defaults_.original_positions;
    return positive(rope_, original, kMostPositions, max_positions_);
  }

  const JsonObject& keys_;
  const JsonObject& rope_;
  const RotaryDefaults& defaults_;
  int64_t max_positions_;
};

bool has_rope_scaling(const JsonObject& keys) {
  return keys.has("rope_scaling") && !keys.value("rope_scaling").empty();
}

/// Returns how many elements of a head are rotated; nullopt: all.
std::optional<int64_t> rotated_numbers(const JsonObject& keys, int64_t head_dim, double factor,
                                       bool may_be_partial, const std::string& model_type) {
  if (factor == 1.0) return std::nullopt;
  if (!may_be_partial) {
    keys.fail(fmt::format("partial_rotary_factor {}: in a model of type {} whole heads are rotated",
                          factor, model_type));
  }
  if (!(factor > 0) || !(factor < 1)) {
    keys.fail(fmt::format("partial_rotary_factor {} is not above 0 and at most 1", factor));
  }
  const auto dim = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  if (dim <= 0 || dim % 2 != 0) {
    keys.fail(fmt::format(
        "partial_rotary_factor {} rotates {} of a head's {} numbers; rotation needs pairs", factor,
        dim, head_dim));
  }
  return dim;
}

/// longrope needs one factor for each pair of rotated elements.
void require_factors(const JsonObject& keys, const RotarySpec& rotary, int64_t head_dim) {
  if (rotary.scaling.type != Type::kLongrope) return;
  const int64_t num_pairs = rotary.dim.value_or(head_dim) / 2;
  for (const auto& [key, factors] : {std::pair{"short_factor", rotary.scaling.short_factors},
                                     std::pair{"long_factor", rotary.scaling.long_factors}}) {
    if (std::ssize(factors) == num_pairs) continue;
    keys.fail(
        fmt::format("{} of longrope has {} numbers; wanted are {}, one of each pair that is "
                    "rotated",
                    key, factors.size(), num_pairs));
  }
}

/// Reads mrope_section: the pairs of each axis, which add up to the rotated pairs.
std::optional<RotaryAxes> axes_of(const JsonObject& keys, const std::optional<JsonObject>& rope,
                                  int64_t num_pairs, const RotaryDefaults& defaults) {
  if (!defaults.axes) return std::nullopt;
  RotaryAxes axes = *defaults.axes;
  if (rope && rope->has("mrope_section")) {
    const auto sections = rope->get<std::vector<int64_t>>("mrope_section");
    if (sections.size() != axes.sections.size()) {
      rope->fail(fmt::format("mrope_section has {} numbers; wanted are {}", sections.size(),
                             axes.sections.size()));
    }
    std::ranges::copy(sections, axes.sections.begin());
  }
  if (rope && rope->get<bool>("mrope_interleaved", axes.interleaved) != axes.interleaved) {
    rope->fail(fmt::format("mrope_interleaved must be {} in this family", axes.interleaved));
  }
  const bool fits = std::ranges::all_of(
      axes.sections, [&](int64_t size) { return size >= 0 && size <= kMostIndexed; });
  // Interleaved sections beyond the pairs have no effect, as in transformers.
  if (!fits || (!axes.interleaved && std::accumulate(axes.sections.begin(), axes.sections.end(),
                                                     int64_t{0}) != num_pairs)) {
    keys.fail(fmt::format(
        "mrope_section [{}] must be three numbers from 0 on{}", fmt::join(axes.sections, ", "),
        axes.interleaved
            ? ""
            : fmt::format(" that add up to {}, the rotated pairs of a head", num_pairs)));
  }
  return axes;
}

/// `rope`: the object with the scaling; nullopt: the file has none.
RotarySpec rotary_of(const JsonObject& keys, const std::optional<JsonObject>& rope,
                     int64_t head_dim, const RotaryDefaults& defaults, ModelConfig& config) {
  RotarySpec rotary{.theta = keys.get<double>("rope_theta", defaults.theta),
                    .scaling = defaults.scaling,
                    .pairs = defaults.pairs};
  double factor = keys.get<double>("partial_rotary_factor", defaults.partial_factor.value_or(1.0));
  if (rope) {
    rotary.scaling = ScalingReader(keys, *rope, defaults, config.max_position_embeddings).read();
    rotary.theta = rope->get<double>("rope_theta", rotary.theta);
    factor = rope->get<double>("partial_rotary_factor", factor);
  }
  if (!(rotary.theta > 1)) {
    keys.fail(fmt::format("rope_theta is {}, it must be larger than 1", rotary.theta));
  }
  rotary.dim = rotated_numbers(keys, head_dim, factor, defaults.partial_factor.has_value(),
                               config.model_type);
  require_factors(keys, rotary, head_dim);
  rotary.axes = axes_of(keys, rope, rotary.dim.value_or(head_dim) / 2, defaults);
  config.rotary = rotary;
  return rotary;
}

constexpr std::pair<std::string_view, Type> kWithMrope[] = {{"default", Type::kDefault},
                                                            {"mrope", Type::kDefault},
                                                            {"linear", Type::kLinear},
                                                            {"yarn", Type::kYarn}};

}  // namespace

const std::span<const std::pair<std::string_view, Type>> kRopeTypesWithMrope = kWithMrope;

const RotaryDefaults kQwen3VlRotary{
    .theta = 5e5,
    .types = kWithMrope,
    .axes = RotaryAxes{.sections = {24, 20, 20}, .interleaved = true}};

RotarySpec read_rotary(const JsonObject& keys, int64_t head_dim, const RotaryDefaults& defaults,
                       ModelConfig& config) {
  const char* name = has_rope_scaling(keys) ? "rope_scaling" : "rope_parameters";
  std::optional<JsonObject> rope;
  if (keys.has(name)) rope.emplace(keys.object(name));
  return rotary_of(keys, rope, head_dim, defaults, config);
}

RotaryByKind read_rotary_by_kind(const JsonObject& keys, int64_t head_dim,
                                 const RotaryDefaults& defaults, const RotarySpec& windowed,
                                 ModelConfig& config) {
  config.has_rotary_by_kind = true;
  RotaryByKind both{.full = {}, .windowed = windowed};
  if (has_rope_scaling(keys) || !keys.has("rope_parameters")) {
    both.full = read_rotary(keys, head_dim, defaults, config);
  } else {
    const JsonObject kinds = keys.object("rope_parameters");
    std::optional<JsonObject> full;
    if (kinds.has("full_attention")) full.emplace(kinds.object("full_attention"));
    both.full = rotary_of(keys, full, head_dim, defaults, config);
    if (kinds.has("sliding_attention")) {
      const JsonObject rope = kinds.object("sliding_attention");
      both.windowed.scaling =
          ScalingReader(keys, rope, defaults, config.max_position_embeddings).read();
      require_factors(keys, both.windowed, head_dim);
      both.windowed.theta = rope.get<double>("rope_theta", windowed.theta);
      if (rope.get<double>("partial_rotary_factor", 1.0) != 1.0) {
        rope.fail("partial_rotary_factor other than 1 is not supported in layers with a window");
      }
    }
  }
  if (!(both.windowed.theta > 1)) {
    keys.fail(fmt::format(
        "rope_theta of layers with a window (rope_local_base_freq) is {}, it must be larger than 1",
        both.windowed.theta));
  }
  return both;
}

}  // namespace longspan
