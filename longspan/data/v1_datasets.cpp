#include "longspan/data/v1_datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"
#include "longspan/text/yaml.h"

namespace longspan {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Returns an entry with the keys of dataset_info.json. `fail` throws.
template <class Fail>
json entry_of_v1(const ordered_json& given, const Fail& fail) {
  static const std::vector<std::string> known = {"path", "source", "split",    "converter",
                                                 "size", "weight", "streaming"};
  if (!given.is_object()) fail("wanted is an object with a path");
  for (const auto& [key, value] : given.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    fail(
        fmt::format("unknown key {}; {}", shortened(key, 60), suggestion(key, known, "known key")));
  }
  const ordered_json path = given.value("path", ordered_json());
  if (!path.is_string()) fail("path is missing");
  const ordered_json source = given.value("source", ordered_json("hf_hub"));
  if (source != "local") {
    fail(
        fmt::format("source: {} is not supported. Fetch the data set (`hf download --repo-type "
                    "dataset {} --local-dir FOLDER`), and give path: FOLDER and source: local",
                    shortened(source.dump(), 60), path.get<std::string>()));
  }
  if (given.value("streaming", ordered_json(false)) != false) {
    fail("streaming: true is not supported here; set it in the configuration, for all data sets");
  }
  if (const auto weight = given.value("weight", ordered_json()); !weight.is_null() && weight != 1) {
    fail("weight is not supported; give size, the number of rows");
  }
  json entry = {{"file_name", path.get<std::string>()}};
  if (given.contains("split")) entry["split"] = json(given.at("split"));
  if (given.contains("size")) entry["num_samples"] = json(given.at("size"));
  const ordered_json converter = given.value("converter", ordered_json());
  if (converter != "alpaca" && converter != "sharegpt") {
    fail(fmt::format("converter: {}; alpaca and sharegpt are supported",
                     converter.is_null() ? "missing" : shortened(converter.dump(), 60)));
  }
  entry["formatting"] = json(converter);
  return entry;
}

}  // namespace

bool is_v1_list(const std::string& name) {
  return name.ends_with(".yaml") || name.ends_with(".yml");
}

std::vector<std::pair<std::string, json>> read_v1_list(const std::string& path) {
  const std::string text = read_text_file(path, "list of data sets");
  const ordered_json list = parse_ordered_json(yaml_to_json(text, path), path);
  if (!list.is_object() || list.empty()) {
    throw UserError(fmt::format(
        "{}: wanted is a list of data sets, for example\n  my_data:\n    path: data/my_data.json\n"
        "    source: local\n    converter: alpaca",
        path));
  }
  std::vector<std::pair<std::string, json>> entries;
  for (const auto& [name, given] : list.items()) {
    const auto fail = [&](const std::string& problem) {
      throw UserError(fmt::format("{}: dataset {}: {}", path, shortened(name, 60), problem));
    };
    entries.emplace_back(name, entry_of_v1(given, fail));
  }
  return entries;
}

void take_v1_columns(DatasetEntry& entry) {
  entry.between_prompt_and_query = "";
  if (entry.formatting == Formatting::kAlpaca) entry.columns.system = "system";
  if (entry.formatting == Formatting::kShareGpt) entry.columns.tools = "tools";
}

}  // namespace longspan
