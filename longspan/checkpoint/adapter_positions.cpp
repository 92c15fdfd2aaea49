#include "longspan/checkpoint/adapter_positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/models/composite.h"
#include "longspan/models/parse_model_config.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFile = "longspan_adapter.json";
/// transformers 5 writes rope_parameters; versions 4 and 5 write the other keys.
constexpr const char* kKeys[] = {"max_position_embeddings", "original_max_position_embeddings",
                                 "rope_parameters", "rope_scaling", "rope_theta"};

OrderedJson positions_of(const ModelConfig& config) {
  OrderedJson whole = parse_ordered_json(config.json, "config.json");
  const OrderedJson& json = language_keys(whole);
  OrderedJson positions = OrderedJson::object();
  for (const char* key : kKeys) {
    if (json.contains(key)) positions[key] = json.at(key);
  }
  return positions;
}

}  // namespace

bool same_positions(const ModelConfig& one, const ModelConfig& other) {
  // nlohmann::json sorts keys, so their order makes no difference.
  return nlohmann::json(positions_of(one)) == nlohmann::json(positions_of(other));
}

void save_positions(const std::string& folder, const ModelConfig& trained,
                    const std::string& base_model) {
  const fs::path path = fs::path(folder) / kFile;
  try {
    if (same_positions(trained, load_model_config(base_model))) {
      fs::remove(path);
      return;
    }
  } catch (const UserError&) {
    // The base model was removed during training. The adapter is saved all the same.
  }
  write_file_atomically(path.string(), positions_of(trained).dump(2) + "\n");
}

ModelConfig with_positions_of(const std::vector<std::string>& adapters, const ModelConfig& base) {
  for (auto folder = adapters.rbegin(); folder != adapters.rend(); ++folder) {
    const fs::path path = model_file(*folder, kFile);
    const auto text = read_text_file_if_there(path.string(), "positions of the adapter");
    if (!text) continue;
    const OrderedJson positions = parse_ordered_json(*text, path.string());
    if (!positions.is_object()) {
      throw UserError(fmt::format("{} is not a JSON object.", path.string()));
    }
    OrderedJson whole = parse_ordered_json(base.json, "config.json");
    OrderedJson& json = language_keys(whole);
    for (const char* key : kKeys) json.erase(key);
    for (const auto& [key, value] : positions.items()) {
      if (std::ranges::find(kKeys, std::string_view(key)) == std::end(kKeys)) {
        throw UserError(fmt::format("{}: there is no key {}.", path.string(), key));
      }
      json[key] = value;
    }
    return parse_model_config(whole.dump(2) + "\n", path.string());
  }
  return base;
}

}  // namespace longspan
