// Suggests a family for an unsupported model. No torch.
#pragma once

#include <string>
#include <string_view>

#include "longspan/input/json_object.h"

namespace longspan {

/// Describes the nearest family for a config.json with an unsupported model_type, and lists the
/// keys that the family does not know. The nearest family is the family with the most similar name.
/// If no name is similar, the nearest family is the family that can read the file and knows most of
/// the file's keys. Returns ". The nearest is ..., which ...", or an empty string if no family is
/// near.
std::string describe_nearest_family(const JsonObject& keys, std::string_view model_type);

}  // namespace longspan
