#include "longspan/spec/model_spec.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "longspan/input/numbers.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {
namespace {

std::vector<ParameterSpec> before_layers(const ModelSpec& model) {
  return {parameter_spec(kEmbeddingName, {model.vocab_size, model.hidden_size},
                         ParameterRole::kEmbedding, kEmbeddingUnit,
                         {Initialisation::Kind::kNormal, model.initializer_range})};
}

std::vector<ParameterSpec> vision_parameters(const ModelSpec& model) {
  if (!model.vision) return {};
  return parameters_of(*model.vision, model.vision_unit());
}

std::vector<ParameterSpec> after_layers(const ModelSpec& model) {
  std::vector<ParameterSpec> parameters{
      parameter_spec("model.norm.weight", {model.hidden_size}, ParameterRole::kNorm, kAlwaysThere)};
  parameters.back().init = first_values(model.norm_kind);
  if (!model.tied_head) {
    parameters.push_back(parameter_spec(kHeadName, {model.vocab_size, model.hidden_size},
                                        ParameterRole::kHead, model.head_unit(),
                                        {Initialisation::Kind::kNormal, model.initializer_range}));
  }
  for (ParameterSpec& parameter : vision_parameters(model)) {
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

/// Returns the distinct kinds of layers: the index of the first layer of each, and their number.
std::vector<std::pair<int64_t, int64_t>> distinct_layers(const ModelSpec& model) {
  const std::vector<int64_t> counts = layers_of_pattern(model);
  std::vector<std::pair<int64_t, int64_t>> distinct;
  for (int64_t i = 0; i < std::ssize(model.pattern); ++i) {
    const auto known = std::ranges::find_if(
        distinct, [&](const auto& kind) { return model.pattern[kind.first] == model.pattern[i]; });
    if (known == distinct.end()) {
      distinct.emplace_back(i, counts[i]);
    } else {
      known->second += counts[i];
    }
  }
  return distinct;
}

}  // namespace

LayerCost cost_of(const LayerSpec& layer, int64_t hidden_size) {
  const auto cost = [&](const auto& part) { return cost_of(part, hidden_size); };
  LayerCost both{std::visit(cost, layer.mixer), std::visit(cost, layer.feed_forward)};
  if (layer.norms.behind) {  // these norms save their inputs
    both.mixer.saved_for_norms += hidden_size;
    both.feed_forward.saved += hidden_size;
    both.feed_forward.saved_hidden += hidden_size;
    // If nothing was saved, the input of this norm is recomputed first.
    both.feed_forward.working += hidden_size + both.feed_forward.width;
    both.feed_forward.grouped.working += hidden_size;
    both.feed_forward.grouped.exchanged += hidden_size;
  }
  return both;
}

bool feed_forward_saves(const ModelSpec& model, const LayerSpec& layer) {
  return cost_of(layer, model.hidden_size).feed_forward.saved > 0;
}

int64_t num_saving_layers(const ModelSpec& model) {
  const std::vector<int64_t> counts = layers_of_pattern(model);
  int64_t num = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (feed_forward_saves(model, model.pattern[i])) num += counts[i];
  }
  return num;
}

std::vector<int64_t> last_saving_layers(const ModelSpec& model, int64_t count) {
  std::vector<int64_t> layers;
  for (int64_t i = model.num_layers - 1; i >= 0 && std::ssize(layers) < count; --i) {
    if (feed_forward_saves(model, model.layer(i))) layers.push_back(i);
  }
  return layers;
}

std::vector<int64_t> layers_of_pattern(const ModelSpec& model) {
  const int64_t length = std::ssize(model.pattern);
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < length; ++i)
    counts.push_back((model.num_layers + length - 1 - i) / length);
  return counts;
}

AttentionSpec* attention_in(TokenMixerSpec& mixer) {
  // Safe: the mixer itself is not const.
  return std::visit(
      [](auto& kind) { return const_cast<AttentionSpec*>(attention_in(std::as_const(kind))); },
      mixer);
}

std::vector<std::pair<AttentionSpec, int64_t>> attentions_of(const ModelSpec& model) {
  std::vector<std::pair<AttentionSpec, int64_t>> attentions;
  const std::vector<int64_t> counts = layers_of_pattern(model);
  for (size_t i = 0; i < counts.size(); ++i) {
    const AttentionSpec* attention =
        std::visit([](const auto& mixer) { return attention_in(mixer); }, model.pattern[i].mixer);
    if (attention == nullptr || counts[i] == 0) continue;
    const auto known =
        std::ranges::find(attentions, *attention, &std::pair<AttentionSpec, int64_t>::first);
    if (known == attentions.end()) {
      attentions.emplace_back(*attention, counts[i]);
    } else {
      known->second += counts[i];
    }
  }
  return attentions;
}

std::vector<RotaryKind> rotary_kinds_of(const ModelSpec& model) {
  std::vector<RotaryKind> kinds;
  for (const LayerSpec& layer : model.pattern) {
    const std::optional<RotaryKind> kind =
        std::visit([](const auto& mixer) { return rotary_in(mixer); }, layer.mixer);
    if (kind && std::ranges::find(kinds, *kind) == kinds.end()) kinds.push_back(*kind);
  }
  return kinds;
}

std::optional<RecurrenceSpec> recurrence_of(const ModelSpec& model) {
  std::optional<RecurrenceSpec> first;
  for (const LayerSpec& layer : model.pattern) {
    const std::optional<RecurrenceSpec> recurrence =
        std::visit([](const auto& mixer) { return recurrence_in(mixer); }, layer.mixer);
    if (!recurrence) continue;
    if (first && *first != *recurrence) {
      throw std::logic_error("layers with different recurrences in one model");
    }
    first = recurrence;
  }
  return first;
}

std::vector<ParameterSpec> layer_parameters(const ModelSpec& model, int64_t layer) {
  LayerParameters list(layer, model.hidden_size, model.initializer_range, model.norm_kind);
  const LayerSpec& spec = model.layer(layer);
  const auto add = [&](const auto& part) { list_parameters(part, list); };
  std::visit(add, spec.mixer);
  std::visit(add, spec.feed_forward);
  const auto add_norm = [&](std::string_view name) {
    list.norm(name, std::string(name), model.hidden_size);
  };
  add_norm(spec.norms.before_mixer);
  add_norm(spec.norms.before_feed_forward);
  if (spec.norms.behind) {
    add_norm(spec.norms.behind->mixer);
    add_norm(spec.norms.behind->feed_forward);
  }
  std::vector<ParameterSpec> parameters = list.take();
  if (const MixtureOfExpertsSpec* experts = experts_of(model)) {
    pass_over_unadapted(*experts, parameters);
  }
  return parameters;
}

std::vector<ParameterSpec> parameters_of_kinds(const ModelSpec& model) {
  std::vector<ParameterSpec> parameters;
  for (const auto& [layer, number] : distinct_layers(model)) {
    for (ParameterSpec& parameter : layer_parameters(model, layer)) {
      parameters.push_back(std::move(parameter));
    }
  }
  return parameters;
}

std::vector<ParameterSpec> parameters_of(const ModelSpec& model) {
  std::vector<ParameterSpec> parameters = before_layers(model);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (ParameterSpec& parameter : layer_parameters(model, layer)) {
      parameters.push_back(std::move(parameter));
    }
  }
  for (ParameterSpec& parameter : after_layers(model)) parameters.push_back(std::move(parameter));
  return parameters;
}

int64_t num_parameters_of(const ModelSpec& model, const std::string& what) {
  const auto product = [&](int64_t a, int64_t b) { return bounded_product({a, b}, what); };
  const auto count = [&](const std::vector<ParameterSpec>& parameters) {
    int64_t total = 0;
    for (const ParameterSpec& parameter : parameters) {
      if (is_buffer(parameter.role)) continue;
      int64_t size = 1;
      for (const int64_t dim : parameter.shape) size = product(size, dim);
      total = counted_sum({total, size}, what);
    }
    return total;
  };
  int64_t total = counted_sum({count(before_layers(model)), count(after_layers(model))}, what);
  for (const auto& [layer, number] : distinct_layers(model)) {
    total = counted_sum({total, product(number, count(layer_parameters(model, layer)))}, what);
  }
  return total;
}

std::vector<std::string> lora_targets(const ModelSpec& model, const std::set<ModelPart>& parts) {
  std::vector<std::string> targets;
  std::vector<ParameterSpec> parameters = parameters_of_kinds(model);
  for (ParameterSpec& parameter : vision_parameters(model)) {
    parameters.push_back(std::move(parameter));
  }
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.lora_target.empty() || !parts.contains(parameter.part)) continue;
    if (std::ranges::find(targets, parameter.lora_target) == targets.end()) {
      targets.push_back(parameter.lora_target);
    }
  }
  return targets;
}

int64_t idle_parameters_of(const ModelSpec& model) {
  int64_t idle = 0;
  for (const auto& [layer, number] : distinct_layers(model)) {
    idle += number * cost_of(model.layer(layer), model.hidden_size).feed_forward.idle_matrices;
  }
  return idle;
}

std::vector<int64_t> layers_with_experts(const ModelSpec& model) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (experts_of(model.layer(layer)) != nullptr) layers.push_back(layer);
  }
  return layers;
}

const MixtureOfExpertsSpec* experts_of(const LayerSpec& layer) {
  return std::visit([](const auto& kind) { return experts_in(kind); }, layer.feed_forward);
}

const MixtureOfExpertsSpec* experts_of(const ModelSpec& model) {
  for (const LayerSpec& layer : model.pattern) {
    if (const MixtureOfExpertsSpec* experts = experts_of(layer)) return experts;
  }
  return nullptr;
}

}  // namespace longspan
