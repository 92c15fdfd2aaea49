#include "longspan/spec/layer_parameters.h"

#include <fmt/format.h>

#include <utility>

namespace longspan {

std::string layer_parameter_name(int64_t layer, std::string_view name) {
  return fmt::format("{}{}.{}", kLayersPrefix, layer, name);
}

LayerParameters::LayerParameters(int64_t layer, int64_t hidden_size, double initializer_range,
                                 NormKind norms)
    : layer_(layer),
      hidden_size_(hidden_size),
      matrices_{Initialisation::Kind::kNormal, initializer_range},
      norms_(norms) {}

void LayerParameters::linear(const char* module, const char* name, int64_t num_out, int64_t num_in,
                             bool bias) {
  const std::string linear = fmt::format("{}.{}", module, name);
  add_matrix(module, linear, name, num_out, num_in);
  if (bias) add_bias(module, linear, num_out);
}

void LayerParameters::linear_of_latents(const char* module, const char* name, int64_t num_out,
                                        int64_t num_in) {
  add_matrix(module, fmt::format("{}.{}", module, name), name, num_out, num_in).expands_latents =
      true;
}

void LayerParameters::linear_of_part(const char* module, const std::string& part, const char* name,
                                     int64_t num_out, int64_t num_in, bool bias) {
  const std::string linear = fmt::format("{}.{}.{}", module, part, name);
  add_matrix(module, linear, name, num_out, num_in);
  if (bias) add_bias(module, linear, num_out);
}

void LayerParameters::linear_of_expert(const char* module, const char* part, const char* name,
                                       const LinearShape& shape, const ExpertNumber& expert,
                                       const RowsOfStack& stack) {
  const int64_t num_in = shape.num_in;
  const std::string linear = fmt::format("{}.{}.{}.{}", module, part, expert.number, name);
  ParameterSpec& matrix = add_matrix(module, linear, name, shape.num_out, num_in);
  matrix.expert = expert;
  matrix.stored_in_stack = StackedPlace{
      .tensor = layer_parameter_name(layer_, fmt::format("{}.{}.{}", module, part, stack.name)),
      .shape = {expert.count, stack.num_rows, num_in},
      .begin = (expert.number * stack.num_rows + stack.begin) * num_in};
  if (shape.has_bias) add_bias(module, linear, shape.num_out).expert = expert;
}

void LayerParameters::stacked_linears(const char* module, const char* part, const char* name,
                                      const LinearShape& shape, int64_t count) {
  const std::string stored =
      layer_parameter_name(layer_, fmt::format("{}.{}.{}", module, part, name));
  const auto linear = [&](int64_t i) { return fmt::format("{}.{}.{}.{}", module, part, i, name); };
  for (int64_t i = 0; i < count; ++i) {
    ParameterSpec& weight = add_matrix(module, linear(i), name, shape.num_out, shape.num_in);
    weight.expert = ExpertNumber{i, count};
    weight.stored_as = stored;
    weight.stored_part = StoredPart{.begin = i, .num_rows = count, .stacked = true};
  }
  for (int64_t i = 0; shape.has_bias && i < count; ++i) {
    ParameterSpec& added = add_bias(module, linear(i), shape.num_out);
    added.expert = ExpertNumber{i, count};
    added.stored_as = stored + "_bias";
    added.stored_part = StoredPart{.begin = i, .num_rows = count, .stacked = true};
  }
}

void LayerParameters::router(const char* module, const std::string& name, int64_t num_experts,
                             bool bias) {
  add(module, name + ".weight", {num_experts, hidden_size_}, ParameterRole::kRouter, matrices_);
  if (bias) add(module, name + ".bias", {num_experts}, ParameterRole::kBias, matrices_);
}

void LayerParameters::buffer(const char* module, const std::string& name, int64_t size) {
  add(module, name, {size}, ParameterRole::kBuffer, {});
}

void LayerParameters::norm(std::string_view module, const std::string& name, int64_t size) {
  norm_of_kind(module, name, size, norms_);
}

void LayerParameters::norm_of_kind(std::string_view module, const std::string& name, int64_t size,
                                   NormKind kind) {
  add(module, name + ".weight", {size}, ParameterRole::kNorm, {}).init = first_values(kind);
}

void LayerParameters::bias_of_ones(const char* module, const std::string& name, int64_t size) {
  add(module, name, {size}, ParameterRole::kBias, {Initialisation::Kind::kOnes});
}

void LayerParameters::log_decay(const char* module, const std::string& name, int64_t size) {
  // As in transformers.
  constexpr double kFastest = 16.0;
  add(module, name, {size}, ParameterRole::kLogDecay,
      {Initialisation::Kind::kLogUniform, kFastest});
}

void LayerParameters::convolution(const char* module, const std::string& name, int64_t num_channels,
                                  int64_t width) {
  add(module, name, {num_channels, 1, width}, ParameterRole::kConvolution, matrices_);
}

void LayerParameters::sinks(const char* module, const std::string& name, int64_t num_heads) {
  add(module, name, {num_heads}, ParameterRole::kSinks, matrices_);
}

void LayerParameters::store_together(const char* module, const char* name, int num_linears) {
  const auto first = parameters_.end() - num_linears;
  int64_t num_rows = 0;
  for (auto part = first; part != parameters_.end(); ++part) num_rows += part->shape.at(0);
  const std::string linear = layer_parameter_name(layer_, fmt::format("{}.{}", module, name));
  int64_t begin = 0;
  for (auto part = first; part != parameters_.end(); ++part) {
    part->stored_as = linear + ".weight";
    part->stored_part = StoredPart{.begin = begin, .num_rows = num_rows};
    part->lora_target = name;
    part->adapted_linear = linear;
    begin += part->shape.at(0);
  }
}

void LayerParameters::store_in_stacks() {
  for (ParameterSpec& matrix : parameters_) {
    if (!matrix.stored_in_stack) continue;
    const StackedPlace& stack = *matrix.stored_in_stack;
    matrix.stored_as = stack.tensor;
    matrix.stored_part = StoredPart{.begin = stack.begin / stack.shape[2],
                                    .num_rows = stack.shape[0] * stack.shape[1],
                                    .num_matrices = stack.shape[0]};
    matrix.stored_in_stack.reset();
  }
}

ParameterSpec& LayerParameters::add_matrix(const char* module, const std::string& linear,
                                           const char* target, int64_t num_out, int64_t num_in) {
  ParameterSpec& matrix =
      add(module, linear + ".weight", {num_out, num_in}, ParameterRole::kProjection, matrices_);
  matrix.lora_target = target;
  matrix.adapted_linear = layer_parameter_name(layer_, linear);
  return matrix;
}

ParameterSpec& LayerParameters::add_bias(const char* module, const std::string& linear,
                                         int64_t num_out) {
  return add(module, linear + ".bias", {num_out}, ParameterRole::kBias, {});
}

std::vector<ParameterSpec> LayerParameters::take() { return std::move(parameters_); }

ParameterSpec& LayerParameters::add(std::string_view module, const std::string& name,
                                    std::vector<int64_t> shape, ParameterRole role,
                                    Initialisation init) {
  parameters_.push_back(parameter_spec(layer_parameter_name(layer_, name), std::move(shape), role,
                                       static_cast<int>(layer_) + 1, init));
  parameters_.back().layer = layer_;
  parameters_.back().module = module;
  return parameters_.back();
}

}  // namespace longspan
