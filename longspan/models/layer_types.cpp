#include "longspan/models/layer_types.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

namespace longspan {

std::optional<std::vector<bool>> layers_with_window(const JsonObject& keys, int64_t num_layers) {
  if (!keys.has("layer_types")) return std::nullopt;
  const nlohmann::json& types = keys.value("layer_types");
  if (!types.is_array() || std::ssize(types) != num_layers) {
    keys.fail(
        fmt::format("layer_types must be a list of one kind for each of {} layers", num_layers));
  }
  std::vector<bool> windowed;
  for (const nlohmann::json& type : types) {
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    if (name != "sliding_attention" && name != "full_attention") {
      keys.fail(fmt::format(
          "layer_types has {}; sliding_attention and full_attention are supported", type.dump()));
    }
    windowed.push_back(name == "sliding_attention");
  }
  return windowed;
}

}  // namespace longspan
