// Parses config.json. No torch.
#pragma once

#include <string>

#include "longspan/input/json_object.h"
#include "longspan/models/family.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// Does the same as load_model_config(), from the file's text. `source`: the file's name, for
/// messages.
ModelConfig parse_model_config(const std::string& text, const std::string& source);

/// Reads config.json as a file of `family`, and ignores the model_type in the file. `keys` must
/// outlive the call.
ModelConfig read_model_config_as(const Family& family, const JsonObject& keys);

}  // namespace longspan
