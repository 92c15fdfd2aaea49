// The places of a model's parameters in its folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "longspan/checkpoint/stored_tensors.h"
#include "longspan/models/model_config.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {

/// Finds all parameters of the architecture by reading headers only. Experts may be stacked
/// (ParameterSpec::stored_in_stack). Matrices may be in MXFP4 or fp8, as config.json says. Tensors
/// may have the names that a vision-language model gives them (models/composite.h). Throws
/// UserError: no weights, missing or unexpected tensors, shapes that differ from config.json.
std::vector<StoredParameter> find_parameters(const std::string& folder, const ModelConfig& config);

/// Counts the tensors that are not read, by reason. Throws UserError where there are no weights.
std::map<LeftOut, int64_t> left_out_tensors(const std::string& folder, const ModelConfig& config);

/// Whether the files hold a head that differs from the embedding although config.json ties the two.
/// Reads both tensors up to the first difference. Throws UserError where there are no weights.
bool has_own_head(const std::string& folder, const ModelConfig& config);

/// Finds the tensors of a vision-language model that saving copies unchanged. Throws UserError
/// where a file lacks a tensor that the index names.
std::vector<StoredTensor> find_copied_tensors(const std::string& folder, const ModelConfig& config);

}  // namespace longspan
