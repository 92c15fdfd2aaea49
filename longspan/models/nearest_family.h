// Suggests a family for an unsupported model. No torch.
#pragma once

#include <string>
#include <string_view>

#include "longspan/input/json_object.h"

namespace longspan {

/// For a config.json with an unsupported model_type: describes the family with the nearest name or,
/// if no name is near, the family that reads the file and knows most of its keys, and lists the
/// keys that it does not know. Returns ". The nearest is ..., which ...", or an empty string if
/// none is near.
std::string describe_nearest_family(const JsonObject& keys, std::string_view model_type);

}  // namespace longspan
