#include "longspan/rollouts/api_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "longspan/base/user_error.h"

namespace longspan {

std::string api_key_in(const std::string& variable) {
  if (variable.empty()) return {};
  const char* const value = std::getenv(variable.c_str());
  const std::string key = value == nullptr ? "" : value;
  if (key.empty()) {
    throw UserError(fmt::format(
        "rollout_api_key_env: the environment variable {} is not set; set it to the server's API "
        "key, or remove rollout_api_key_env",
        variable));
  }
  if (std::ranges::all_of(key, [](char c) { return c > ' ' && c < '\x7f'; })) return key;
  throw UserError(fmt::format(
      "rollout_api_key_env: the environment variable {} has a character that a header cannot have, "
      "such as a space or a line feed; set it to the API key alone",
      variable));
}

}  // namespace longspan
