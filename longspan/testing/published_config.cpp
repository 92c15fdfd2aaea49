#include "longspan/testing/published_config.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/models/parse_model_config.h"

namespace longspan::testing {

using Json = nlohmann::json;

PublishedConfig PublishedConfig::with(const std::string& changes) const {
  Json keys = Json::parse(json_);
  keys.update(Json::parse(changes));
  return PublishedConfig(keys.dump());
}

PublishedConfig PublishedConfig::without(const std::vector<std::string>& keys) const {
  Json left = Json::parse(json_);
  for (const std::string& key : keys) left.erase(key);
  return PublishedConfig(left.dump());
}

ModelConfig PublishedConfig::load(const std::string& changes) const {
  return parse_model_config(with(changes).json_, "config.json");
}

bool PublishedConfig::says(const std::string& changes, const std::string& what) const {
  std::string error = "(accepted)";
  try {
    load(changes);
  } catch (const UserError& refused) {
    error = refused.what();
  }
  const bool found = error.find(what) != std::string::npos;
  if (!found) MESSAGE("with ", changes, ": ", error);
  return found;
}

std::string json_list(const std::vector<std::string>& names) { return Json(names).dump(); }

}  // namespace longspan::testing
