// The config.json of a published model, and variants with other keys. Keys are given as JSON text,
// so that tests need not compile JSON.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "longspan/models/model_config.h"

namespace longspan::testing {

class PublishedConfig {
 public:
  explicit PublishedConfig(std::string json) : json_(std::move(json)) {}

  /// Returns the config with the keys of `changes` replaced or added.
  PublishedConfig with(const std::string& changes) const;
  PublishedConfig without(const std::vector<std::string>& keys) const;

  /// Throws the errors of reading config.json.
  ModelConfig load(const std::string& changes = "{}") const;
  /// True if the config with these changes is refused with these words.
  bool says(const std::string& changes, const std::string& what) const;

 private:
  std::string json_;
};

inline double billions(int64_t number) { return static_cast<double>(number) * 1e-9; }

/// ["a", "b"]
std::string json_list(const std::vector<std::string>& names);

}  // namespace longspan::testing
