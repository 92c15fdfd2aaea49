// The config.json of a published model, and what is made of it with some keys changed. Keys are
// given as JSON's text, so that a test need not compile JSON.
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

  /// With the keys of `changes` in the place of its own.
  PublishedConfig with(const std::string& changes) const;
  PublishedConfig without(const std::vector<std::string>& keys) const;

  /// Throws what reading config.json throws.
  ModelConfig load(const std::string& changes = "{}") const;
  /// Is it refused with these changes, in these words?
  bool says(const std::string& changes, const std::string& what) const;

 private:
  std::string json_;
};

inline double billions(int64_t number) { return static_cast<double>(number) * 1e-9; }

/// ["a", "b"]
std::string json_list(const std::vector<std::string>& names);

}  // namespace longspan::testing
