#include "longspan/data/unread_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

constexpr size_t kMostNamed = 10;
/// Limits the list for rows whose keys are data, with a key for each item.
constexpr size_t kMostKeys = 1000;

bool is_empty(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}

}  // namespace

void UnreadKeys::add(const nlohmann::ordered_json& object, const std::vector<std::string>& read,
                     std::string_view what) {
  for (const auto& [key, value] : object.items()) {
    if (!is_empty(value) && std::ranges::find(read, key) == read.end()) add(key, what);
  }
}

void UnreadKeys::add(const std::string& key, std::string_view what, int64_t count) {
  const std::string both = fmt::format("{}\n{}", what, key);
  if (const auto place = places_.find(both); place != places_.end()) {
    keys_[place->second].count += count;
  } else if (keys_.size() < kMostKeys) {
    places_.emplace(both, keys_.size());
    keys_.push_back({key, std::string(what), count});
  }
}

void UnreadKeys::add(const UnreadKeys& others) {
  for (const Key& key : others.keys_) add(key.name, key.what, key.count);
}

std::string UnreadKeys::text() const {
  if (keys_.empty()) return "";
  std::vector<std::string> named;
  for (const Key& key : keys_) {
    if (named.size() == kMostNamed) {
      named.push_back(fmt::format("and {} more", keys_.size() - kMostNamed));
      break;
    }
    named.push_back(fmt::format("{} ({})", shortened(key.name, 60), counted(key.count, key.what)));
  }
  return fmt::format("{} not read: {}",
                     keys_.size() == 1
                         ? "1 key is"
                         : fmt::format("{}{} keys are",
                                       keys_.size() == kMostKeys ? "at least " : "", keys_.size()),
                     fmt::join(named, ", "));
}

}  // namespace longspan
