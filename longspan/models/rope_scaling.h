// Rotary positions stretched to longer rows.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/models/model_config.h"

namespace longspan {

/// `config` (read from `source`, a name for messages) for rows of `row_length` tokens, by
/// LLaMA-Factory's rules for its key rope_scaling: the factor is row_length divided by the
/// positions that the model was made with (original_max_position_embeddings of its own scaling,
/// else max_position_embeddings), rounded up; max_position_embeddings becomes their product; llama3
/// has the frequency factors 1 and 4. Its text says so too, in the keys of the transformers version
/// that wrote it; an own scaling goes. type: linear | yarn | llama3; "" or rows that fit change
/// nothing. Throws UserError where the model's family does not know the type.
ModelConfig stretched(const ModelConfig& config, const std::string& type, int64_t row_length,
                      const std::string& source);

/// In a sentence what stretched() made of `before` with that type; "" where it changed nothing or
/// was not asked.
std::string describe_stretch(const ModelConfig& before, const ModelConfig& after,
                             const std::string& type, int64_t row_length);

}  // namespace longspan
