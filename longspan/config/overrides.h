// Keys on the command line.
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Override {
  std::string key, value;
  bool has_value = true;  // false: a switch, `--bf16`
};

/// Parses `key=value`, `--key value`, `--key=value` and `--key`. Throws UserError, with the right
/// form.
std::vector<Override> read_overrides(const std::vector<std::string>& words);

}  // namespace longspan
