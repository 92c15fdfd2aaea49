#include "longspan/spec/parameter_spec.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace longspan {
namespace {

bool decays(ParameterRole role) {
  switch (role) {
    case ParameterRole::kEmbedding:
    case ParameterRole::kProjection:
    case ParameterRole::kSinks:
    case ParameterRole::kRouter:
    case ParameterRole::kHead:
    case ParameterRole::kLoraA:
    case ParameterRole::kLoraB:
    case ParameterRole::kLoraMagnitude:
    case ParameterRole::kValueHead:
    case ParameterRole::kConvolution:
    case ParameterRole::kPatches:
    case ParameterRole::kPositions:
    case ParameterRole::kFeatures:
    case ParameterRole::kLogDecay:
      return true;
    case ParameterRole::kNorm:
    case ParameterRole::kBias:
    case ParameterRole::kBuffer:
    case ParameterRole::kValueHeadBias:
      return false;
  }
  throw std::logic_error("no role of a parameter");
}

ParameterUse use_of(ParameterRole role) {
  switch (role) {
    case ParameterRole::kProjection:
    case ParameterRole::kPatches:
    case ParameterRole::kFeatures:
    case ParameterRole::kHead:
    case ParameterRole::kLoraA:
    case ParameterRole::kLoraB:
      return ParameterUse::kCast;
    case ParameterRole::kEmbedding:
    case ParameterRole::kNorm:
    case ParameterRole::kBias:
    case ParameterRole::kSinks:
    case ParameterRole::kRouter:
    case ParameterRole::kBuffer:
    case ParameterRole::kLoraMagnitude:
    case ParameterRole::kValueHead:
    case ParameterRole::kValueHeadBias:
    case ParameterRole::kConvolution:
    case ParameterRole::kPositions:
    case ParameterRole::kLogDecay:
      return ParameterUse::kAsHeld;
  }
  throw std::logic_error("no role of a parameter");
}

/// Initialization of torch's linear layers with `num_in` inputs, and of an adapter's A in PEFT.
Initialisation uniform_for(int64_t num_in) {
  return {Initialisation::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(num_in))};
}

ParameterSpec lora_matrix(const ParameterSpec& projection, const std::string& name,
                          std::vector<int64_t> shape, ParameterRole role, Initialisation init) {
  ParameterSpec spec = parameter_spec(name, std::move(shape), role, projection.unit, init);
  spec.layer = projection.layer;
  spec.module = projection.module;
  spec.expert = projection.expert;
  spec.part = projection.part;
  return spec;
}

/// Rows of all projections that share the adapter.
int64_t num_adapted_rows(const ParameterSpec& projection) {
  return shares_adapter(projection) ? projection.stored_part->num_rows : projection.shape[0];
}

}  // namespace

int64_t ParameterSpec::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

ParameterSpec parameter_spec(std::string name, std::vector<int64_t> shape, ParameterRole role,
                             int unit, Initialisation init) {
  if (role == ParameterRole::kNorm) init = {Initialisation::Kind::kOnes};
  return {.name = name,
          .shape = std::move(shape),
          .role = role,
          .unit = unit,
          .layer = std::nullopt,
          .module = "",
          .lora_target = "",
          .passed_over_target = "",
          .adapted_linear = "",
          .expands_latents = false,
          .decays = decays(role),
          .use = use_of(role),
          .init = init,
          .stored_as = name,
          .stored_part = std::nullopt,
          .stored_in_stack = std::nullopt,
          .expert = std::nullopt};
}

Initialisation first_values(NormKind norm) {
  switch (norm) {
    case NormKind::kWeight:
      return {Initialisation::Kind::kOnes};
    case NormKind::kOnePlusWeight:
      return {Initialisation::Kind::kZeros};
  }
  throw std::logic_error("no such norm");
}

std::vector<int64_t> stored_shape(const ParameterSpec& parameter) {
  std::vector<int64_t> shape = parameter.shape;
  if (!parameter.stored_part) return shape;
  if (const int64_t count = parameter.stored_part->num_matrices; count > 0) {
    shape.at(0) = parameter.stored_part->num_rows / count;
    shape.insert(shape.begin(), count);
  } else if (parameter.stored_part->stacked) {
    std::reverse(shape.begin(), shape.end());
    shape.insert(shape.begin(), parameter.stored_part->num_rows);
  } else {
    shape.at(0) = parameter.stored_part->num_rows;
  }
  return shape;
}

bool begins_stored(const ParameterSpec& parameter) {
  return !parameter.stored_part || parameter.stored_part->begin == 0;
}

bool shares_adapter(const ParameterSpec& projection) {
  return projection.stored_part && !projection.stored_part->stacked &&
         projection.stored_part->num_matrices == 0;
}

bool begins_adapter(const ParameterSpec& projection) { return lora_b_begin(projection) == 0; }

int64_t lora_b_begin(const ParameterSpec& projection) {
  return shares_adapter(projection) ? projection.stored_part->begin : 0;
}

std::string lora_a_name(const ParameterSpec& projection) {
  return lora_a_name(projection.adapted_linear);
}

std::string lora_b_name(const ParameterSpec& projection) {
  return lora_b_name(projection.adapted_linear);
}

std::string lora_magnitude_name(const ParameterSpec& projection) {
  return lora_magnitude_name(projection.adapted_linear);
}

std::string lora_magnitude_name(const std::string& linear) {
  return linear + ".lora_magnitude_vector";
}

std::string lora_a_name(const std::string& linear) { return linear + ".lora_A.weight"; }

std::string lora_b_name(const std::string& linear) { return linear + ".lora_B.weight"; }

ParameterSpec lora_a_of(const ParameterSpec& projection, int64_t r) {
  return lora_matrix(projection, lora_a_name(projection), {r, projection.shape[1]},
                     ParameterRole::kLoraA, uniform_for(projection.shape[1]));
}

ParameterSpec lora_b_of(const ParameterSpec& projection, int64_t r) {
  return lora_matrix(projection, lora_b_name(projection), {num_adapted_rows(projection), r},
                     ParameterRole::kLoraB, {Initialisation::Kind::kZeros});
}

ParameterSpec lora_magnitude_of(const ParameterSpec& projection) {
  return lora_matrix(projection, lora_magnitude_name(projection), {num_adapted_rows(projection)},
                     ParameterRole::kLoraMagnitude, {Initialisation::Kind::kOnes});
}

bool is_buffer(ParameterRole role) { return role == ParameterRole::kBuffer; }

bool is_lora(ParameterRole role) {
  return role == ParameterRole::kLoraA || role == ParameterRole::kLoraB ||
         role == ParameterRole::kLoraMagnitude;
}

bool is_value_head(ParameterRole role) {
  return role == ParameterRole::kValueHead || role == ParameterRole::kValueHeadBias;
}

std::vector<ParameterSpec> value_head_parameters(int64_t hidden_size) {
  const Initialisation init = uniform_for(hidden_size);
  return {parameter_spec(kValueHeadWeight, {1, hidden_size}, ParameterRole::kValueHead,
                         kAlwaysThere, init),
          parameter_spec(kValueHeadBias, {1}, ParameterRole::kValueHeadBias, kAlwaysThere, init)};
}

ParameterTable::ParameterTable(const std::vector<ParameterSpec>& parameters) {
  for (const ParameterSpec& parameter : parameters) add(parameter);
}

void ParameterTable::add(const ParameterSpec& parameter) { by_name_[parameter.name] = parameter; }

const ParameterSpec& ParameterTable::of(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw std::logic_error("the model has no parameter " + name);
  return found->second;
}

}  // namespace longspan
