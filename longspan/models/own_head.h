// Unties the head from the embedding. No torch.
#pragma once

#include <string>

#include "longspan/models/model_config.h"

namespace longspan {

/// Returns the same model with its own head and tie_word_embeddings: false in its config.json, so
/// that saved weights load as they were trained.
ModelConfig with_own_head(const ModelConfig& tied);

/// Returns a sentence about the own head if config.json in the folder ties the head; otherwise
/// empty.
std::string describe_own_head(const std::string& folder, const ModelConfig& model);

}  // namespace longspan
