// Where a model's folder has its parameters.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "longspan/checkpoint/stored_tensors.h"
#include "longspan/models/model_config.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {

/// Of all parameters of the architecture, by headers alone. Experts may be stacked
/// (ParameterSpec::stored_in_stack), matrices be in MXFP4 or fp8 where config.json says so, and a
/// language model's tensors be named as those of a model of texts and pictures
/// (models/composite.h). Throws UserError: no weights, missing or unexpected tensors, shapes that
/// differ from config.json.
std::vector<StoredParameter> find_parameters(const std::string& folder, const ModelConfig& config);

/// How many tensors of the files are not read, by what they are. Throws UserError: no weights.
std::map<LeftOut, int64_t> left_out_tensors(const std::string& folder, const ModelConfig& config);

/// Have the files a head with other numbers than the embedding's, where config.json says that it is
/// the embedding? Reads both up to the first difference. Throws UserError: no weights.
bool has_own_head(const std::string& folder, const ModelConfig& config);

/// The tensors of the parts of a model of texts and pictures that are saved as they were read.
/// Throws UserError where a file has not what the index names.
std::vector<StoredTensor> find_copied_tensors(const std::string& folder, const ModelConfig& config);

}  // namespace longspan
