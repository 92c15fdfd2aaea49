// Keys of config.json that families with mixtures of experts have in common. No torch.
#pragma once

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// A number of experts, of equal parts of them, or the like: positive, and no more than is ever
/// made.
int64_t count_of_experts(const JsonObject& keys, const char* name);

/// Which layers have experts, for layers that are not all alike: a list of all layers, of which
/// there are thus few. Throws UserError otherwise.
std::vector<bool> each_layer(const JsonObject& keys, const ModelConfig& config,
                             bool (*has_experts)(const JsonObject& keys, int64_t layer));

/// Throws UserError where the numbers of the mixture do not fit each other.
void check_experts(const JsonObject& keys, const MixtureOfExpertsSpec& experts);

}  // namespace longspan
