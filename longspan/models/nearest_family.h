// Which family a model that is of none may be near to. No torch.
#pragma once

#include <string>
#include <string_view>

#include "longspan/input/json_object.h"

namespace longspan {

/// Of a config.json with a model_type that is not supported: the family whose name is nearest, or,
/// where no name is near, the one that reads the file and knows most of its keys; and what of the
/// file it does not know. ". The nearest is ..., which ...", or nothing where none is near.
std::string describe_nearest_family(const JsonObject& keys, std::string_view model_type);

}  // namespace longspan
