// Where a model's folder has its parameters.
#pragma once

#include <string>
#include <vector>

#include "longspan/checkpoint/stored_tensors.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// Of all parameters of the architecture, by headers alone. Experts may be stacked
/// (ParameterSpec::stored_in_stack), matrices be in MXFP4 or fp8 where config.json says so, and a
/// language model's tensors be named as those of a model of texts and pictures
/// (models/composite.h). Throws UserError: no weights, missing or unexpected tensors, shapes that
/// differ from config.json.
std::vector<StoredParameter> find_parameters(const std::string& folder, const ModelConfig& config);

/// Do the files hold layers that predict further tokens? These are not read. Throws UserError: no
/// weights.
bool has_layers_for_further_tokens(const std::string& folder, const ModelConfig& config);

/// The tensors of the parts of a model of texts and pictures that are saved as they were read.
/// Throws UserError where a file has not what the index names.
std::vector<StoredTensor> find_copied_tensors(const std::string& folder, const ModelConfig& config);

}  // namespace longspan
