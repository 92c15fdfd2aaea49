#include "longspan/checkpoint/weight_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/models/model_place.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string pickled = pickled_weights(folder.string());
  throw UserError(fmt::format(
      "{} has neither {} nor {}. {}", folder.string(), kSingleFile, kIndexFile,
      !pickled.empty()
          ? fmt::format("It has {}, pickled weights; convert them: load the folder in transformers "
                        "and save_pretrained() it.",
                        pickled)
      : is_there(folder / "adapter_config.json")
          ? "It holds an adapter, not a model: name the model in model_name_or_path and this "
            "folder in adapter_name_or_path, or merge both by `longspan export`."
          : "Check the path, or make a random checkpoint with `longspan init`."));
}

std::map<std::string, std::string> indexed_files(const fs::path& folder, const std::string& path) {
  const nlohmann::json index = read_json_file(path, "index of the weights", kMaxTableBytes);
  const JsonObject weight_map = JsonObject(index, path).object("weight_map");
  std::map<std::string, std::string> files, paths;  // by tensor, by shard
  for (const auto& [name, shard] : weight_map.json().items()) {
    const fs::path shard_name(weight_map.get<std::string>(name));
    if (shard_name.has_parent_path()) {
      throw UserError(fmt::format("{}: shard {} of {} is outside of the folder.", path,
                                  shard_name.string(), name));
    }
    std::string& found = paths[shard_name];
    if (found.empty()) found = model_file(folder.string(), shard_name);
    files[name] = found;
  }
  return files;
}

}  // namespace

WeightFiles weight_files(const std::string& name) {
  const fs::path folder(name);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    // The full path: a lone dot for the folder would read as the end of the sentence.
    const fs::path place = fs::absolute(folder).lexically_normal().parent_path();
    throw UserError(fmt::format("{} is a file. Give the folder that holds it, {}, instead.", name,
                                place.string()));
  }
  require_plain_weights(name);
  WeightFiles files;
  if (is_there(folder / kSingleFile)) {
    files.single = model_file(name, kSingleFile);
    return files;
  }
  const std::string index = model_file(name, kIndexFile);
  if (!is_there(index)) refuse_folder(folder);
  files.shards = indexed_files(folder, index);
  return files;
}

}  // namespace longspan
