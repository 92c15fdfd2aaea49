// Number of a model's parameters, and its sizes in words. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// Returns the number of parameter elements, without listing the parameters. Throws UserError with
/// the sizes if the number exceeds 2^53.
int64_t parameter_count(const ModelSpec& model);

/// For example "vocab_size 100, hidden_size 64, intermediate_size 96 and num_hidden_layers 2".
std::string describe_sizes(const ModelSpec& model);

}  // namespace longspan
