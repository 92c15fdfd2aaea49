// The config.json of a published model, and what is made of it with some keys changed.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "longspan/config/user_error.h"
#include "longspan/models/parse_model_config.h"

namespace longspan::testing {

class PublishedConfig {
 public:
  explicit PublishedConfig(nlohmann::json keys) : keys_(std::move(keys)) {}

  const nlohmann::json& keys() const { return keys_; }
  ModelConfig load(const nlohmann::json& changes = nlohmann::json::object()) const {
    nlohmann::json keys = keys_;
    keys.update(changes);
    return parse_model_config(keys.dump(), "config.json");
  }
  /// Is it refused with these changes, in these words?
  bool says(const nlohmann::json& changes, const std::string& what) const {
    try {
      load(changes);
    } catch (const UserError& error) {
      INFO(error.what());
      return std::string(error.what()).find(what) != std::string::npos;
    }
    return false;
  }

 private:
  nlohmann::json keys_;
};

inline double billions(int64_t number) { return static_cast<double>(number) * 1e-9; }

}  // namespace longspan::testing
