// Models with more tokens than in config.json. No torch.
#pragma once

#include <cstdint>

#include "longspan/models/model_config.h"

namespace longspan {

/// Returns the model with another vocab_size, which saving writes into config.json. `model`: as
/// read from a folder, before with_pictures().
ModelConfig with_vocabulary(const ModelConfig& model, int64_t vocab_size);

/// Returns the rows of an embedding of so many tokens, as in LLaMA-Factory: a multiple of 64.
int64_t padded_vocabulary(int64_t num_tokens);

}  // namespace longspan
