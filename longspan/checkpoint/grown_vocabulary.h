// Rows of the embedding and of the head for tokens that a model's folder does not have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_source.h"

namespace longspan {

/// As parameter_sources(). `model` may have more tokens than the folder: the further rows of the
/// embedding and of the head are the mean of the folder's rows plus normal noise of variance
/// 1 / hidden_size, as in LLaMA-Factory. The noise follows from `seed` and the parameter's name.
std::vector<ParameterSource> grown_sources(const std::string& folder, const ModelConfig& model,
                                           at::ScalarType dtype, uint64_t seed);

/// Returns the parameters of grown_sources() for a model with adapters, which hold the further rows
/// of each parameter that their computation uses.
std::vector<NamedTensor> load_grown(const std::string& folder, const ModelConfig& model,
                                    at::ScalarType dtype);

}  // namespace longspan
