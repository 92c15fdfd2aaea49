// config.json's text -> the architecture. No torch.
#pragma once

#include <string>

#include "longspan/input/json_object.h"
#include "longspan/models/family.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// As load_model_config, from the file's text; `source` is its name, for messages.
ModelConfig parse_model_config(const std::string& text, const std::string& source);

/// The same of a file that is of this family, whatever model_type says. Its keys outlive the call.
ModelConfig read_model_config_as(const Family& family, const JsonObject& keys);

}  // namespace longspan
