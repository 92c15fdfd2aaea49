// Warnings of likely mistakes in data and templates, which do not stop a run.
#pragma once

#include <string>

#include "longspan/config/data_settings.h"
#include "longspan/data/example_encoder.h"
#include "longspan/models/model_config.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Rows with more positions than the model has: how many, how long, and what to do; "" when none.
std::string hint_at_positions(const EncodedExamples& encoded, const ModelConfig& model);

/// A template that is made for another model; "" when none is seen.
std::string hint_at_template(const DataSettings& config, const ModelConfig& model,
                             const Tokenizer& tokenizer);

}  // namespace longspan
