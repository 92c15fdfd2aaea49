// Unties the head from the embedding. No torch.
#pragma once

#include <string>

#include "longspan/models/model_config.h"

namespace longspan {

/// Returns the same model with a head that is not tied, and with tie_word_embeddings: false in
/// config.json, so that loading the saved weights restores the trained head.
ModelConfig with_own_head(const ModelConfig& tied);

/// Returns a sentence about the untied head if config.json in `folder` ties the head; otherwise
/// empty.
std::string describe_own_head(const std::string& folder, const ModelConfig& model);

}  // namespace longspan
