// config.json's text -> the architecture. No torch.
#pragma once

#include <string>

#include "longspan/models/model_config.h"

namespace longspan {

/// As load_model_config, from the file's text; `source` is its name, for messages.
ModelConfig parse_model_config(const std::string& text, const std::string& source);

}  // namespace longspan
