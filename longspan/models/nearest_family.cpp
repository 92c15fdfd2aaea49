#include "longspan/models/nearest_family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/models/family.h"
#include "longspan/models/parse_model_config.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

/// Keys of any config.json that do not affect what a trained model computes.
constexpr std::array<std::string_view, 17> kOfAll = {
    "architectures",        "model_type",   "torch_dtype",       "dtype",
    "transformers_version", "use_cache",    "bos_token_id",      "eos_token_id",
    "pad_token_id",         "unk_token_id", "_name_or_path",     "auto_map",
    "tokenizer_class",      "return_dict",  "output_attentions", "output_hidden_states",
    "quantization_config"};

/// True if the value requests something: not null, false, 0 or empty.
bool asks(const nlohmann::json& value) {
  const bool is_empty = (value.is_structured() || value.is_null()) && value.empty();
  return !is_empty && value != false && value != 0 && value != "";
}

struct Reading {
  const Family* family;
  std::vector<std::string> unknown;  // keys that the family did not read
  std::string error;                 // empty: the family reads the file
  int distance;                      // edit distance of the names
};

Reading read_as(const Family& family, const JsonObject& keys, std::string_view model_type) {
  Reading reading{&family, {}, "", edit_distance(model_type, shown_type(family))};
  JsonObject recorded = keys;
  std::set<std::string> asked;
  recorded.record(asked);
  try {
    read_model_config_as(family, recorded);
  } catch (const UserError& error) {
    reading.error = error.what();
    const std::string source = keys.source() + ": ";
    if (reading.error.starts_with(source)) reading.error.erase(0, source.size());
    if (reading.error.ends_with('.')) reading.error.pop_back();
  }
  for (const auto& [key, value] : keys.json().items()) {
    if (!asked.contains(key) && asks(value) &&
        std::find(kOfAll.begin(), kOfAll.end(), key) == kOfAll.end()) {
      reading.unknown.push_back(key);
    }
  }
  return reading;
}

std::string listed_families(const std::vector<std::string>& keys) {
  constexpr size_t kMostNamed = 8, kMostBytes = 60;
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min(keys.size(), kMostNamed); ++i) {
    some.push_back(shortened(keys[i], kMostBytes));
  }
  return fmt::format(
      "{}{}", fmt::join(some, ", "),
      keys.size() > kMostNamed ? fmt::format(" and {} more", keys.size() - kMostNamed) : "");
}

}  // namespace

std::string describe_nearest_family(const JsonObject& keys, std::string_view model_type) {
  std::vector<Reading> readings;
  for (const Family* family : all_families())
    readings.push_back(read_as(*family, keys, model_type));
  const auto by_name = std::ranges::min_element(readings, {}, &Reading::distance);
  const Reading* nearest = &*by_name;
  if (!is_near(model_type, shown_type(*by_name->family))) {
    std::erase_if(readings, [](const Reading& reading) { return !reading.error.empty(); });
    if (readings.empty()) return "";
    nearest = &*std::ranges::min_element(readings, {}, [](const Reading& reading) {
      return std::pair(reading.unknown.size(), reading.distance);
    });
  }
  const Family& family = *nearest->family;
  const std::string models = family.models;
  const std::string named = fmt::format(". The nearest is {}{}", shown_type(family),
                                        models.empty() ? "" : fmt::format(" ({})", models));
  if (!nearest->error.empty()) {
    return fmt::format("{}, and as one of these the file is refused: {}", named, nearest->error);
  }
  return nearest->unknown.empty()
             ? fmt::format(
                   "{}, which knows all keys of the file: what differs is in its layers alone",
                   named)
             : fmt::format("{}, which does not know these keys of the file: {}", named,
                           listed_families(nearest->unknown));
}

}  // namespace longspan
