// Stretches rotary positions to longer rows.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/models/model_config.h"

namespace longspan {

/// Returns `config` for rows of `row_length` tokens, by LLaMA-Factory's rules for rope_scaling. The
/// factor is row_length divided by the model's original positions (original_max_position_embeddings
/// of its own scaling, else max_position_embeddings), rounded up. max_position_embeddings becomes
/// original positions times factor. llama3 gets the frequency factors 1 and 4. The result's json
/// has the same values, in the keys of the transformers version that wrote it, in place of the
/// model's own scaling. type: linear | yarn | llama3. An empty type, or rows that fit, change
/// nothing. `source`: name of the file, for messages. Throws UserError if the model's family does
/// not support the type.
ModelConfig stretched(const ModelConfig& config, const std::string& type, int64_t row_length,
                      const std::string& source);

/// Returns a sentence on the change that stretched() made to `before` with that type; empty if no
/// type was given.
std::string describe_stretch(const ModelConfig& before, const ModelConfig& after,
                             const std::string& type, int64_t row_length);

}  // namespace longspan
