// Parses config.json. No torch.
#pragma once

#include <string>

#include "longspan/input/json_object.h"
#include "longspan/models/family.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// Like load_model_config, from the file's text. `source`: the file's name, for messages.
ModelConfig parse_model_config(const std::string& text, const std::string& source);

/// Reads the file as one of `family`, whatever its model_type. `keys` must outlive the call.
ModelConfig read_model_config_as(const Family& family, const JsonObject& keys);

}  // namespace longspan
