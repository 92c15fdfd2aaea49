// Configurations of LLaMA-Factory's v1, as keys of this program. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace longspan {

/// Whether a file with these keys is a configuration of LLaMA-Factory's v1.
bool is_v1_format(const std::vector<std::string>& keys);

/// Whether the key, up to a period, is one of v1's and none of this program's.
bool is_v1_key(const std::string& key);

struct V1Translation {
  std::string values;                 // a JSON object of keys of this program
  std::vector<std::string> notes;     // to the user
  std::vector<std::string> problems;  // what is wrong with the given keys
};

/// Translates a configuration of LLaMA-Factory 0.9.5's v1. A key that v1 lacks stays in the result,
/// and the reader of keys names the key. `trains`: adds v1's defaults, and the settings that v1's
/// trainer fixes.
V1Translation translate_v1(const nlohmann::json& given, bool trains);

}  // namespace longspan
