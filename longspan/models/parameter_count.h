// How many numbers a model has, and of which sizes it is made. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// Numbers of all parameters, without a list of them. Throws UserError, which names the sizes, when
/// these are more than can be counted (2^53).
int64_t parameter_count(const ModelSpec& model);

/// "vocab_size 100, hidden_size 64, intermediate_size 96 and num_hidden_layers 2"
std::string describe_sizes(const ModelSpec& model);

}  // namespace longspan
