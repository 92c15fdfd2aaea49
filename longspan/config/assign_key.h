// Puts values of a configuration file into the fields of keys. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace longspan {

struct Config;
struct Key;

/// Puts a value into the configuration. Returns what is wrong with it, or "".
std::string assign_key(Config& config, const Key& key, nlohmann::json value);

/// Returns the value as JSON, shortened.
std::string shown_value(const nlohmann::json& value);

}  // namespace longspan
