// Warnings of likely mistakes in data and templates, which do not stop a run.
#pragma once

#include <string>

#include "longspan/data/example_encoder.h"
#include "longspan/models/model_config.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Returns a warning if rows have more positions than the model: how many rows, how long, and the
/// remedy. Otherwise empty.
std::string hint_at_positions(const EncodedExamples& encoded, const ModelConfig& model);

/// Returns a warning if the template is made for another model; otherwise empty.
std::string hint_at_template(const DataSettings& config, const ModelConfig& model,
                             const Tokenizer& tokenizer);

}  // namespace longspan
