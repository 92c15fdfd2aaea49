// How many numbers a model has, by its config alone. No torch.
#pragma once

#include <cstdint>

#include "longspan/models/model_config.h"

namespace longspan {

/// Numbers of all parameters, without a list of them. Throws UserError, which names the sizes, when
/// these are more than can be counted (2^53).
int64_t parameter_count(const ModelConfig& config);

}  // namespace longspan
