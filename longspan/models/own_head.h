// A head of its own where config.json says that the embedding is the head. No torch.
#pragma once

#include <string>

#include "longspan/models/model_config.h"

namespace longspan {

/// The same model with a head of its own, which its config.json says from here on
/// (tie_word_embeddings: false), so that what is saved loads as it was trained.
ModelConfig with_own_head(const ModelConfig& tied);

/// Says so of the model in a folder, where its config.json says something else; else empty.
std::string describe_own_head(const std::string& folder, const ModelConfig& model);

}  // namespace longspan
