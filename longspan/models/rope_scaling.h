// Stretches rotary positions to longer rows.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/models/model_config.h"

namespace longspan {

/// Returns `config` for rows of `row_length` tokens, by LLaMA-Factory's rules for rope_scaling. The
/// factor is row_length divided by the model's original positions (original_max_position_embeddings
/// of the model's own scaling, otherwise max_position_embeddings), rounded up.
/// max_position_embeddings becomes original positions times factor. llama3 gets the frequency
/// factors 1 and 4. In the result's json, the same values replace the model's own scaling, under
/// the keys of the transformers version that wrote the file. type: linear | yarn | llama3. If
/// `type` is empty, or if row_length does not exceed the model's positions, the result equals
/// `config`. `source`: name of the file, for messages. Throws UserError if the model's family does
/// not support the type.
ModelConfig stretched(const ModelConfig& config, const std::string& type, int64_t row_length,
                      const std::string& source);

/// Returns a sentence on the change from `before` to `after` by stretched(); empty if `type` is
/// empty.
std::string describe_stretch(const ModelConfig& before, const ModelConfig& after,
                             const std::string& type, int64_t row_length);

}  // namespace longspan
