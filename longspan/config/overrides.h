// Keys that are given on the command line.
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Override {
  std::string key, value;
  bool has_value = true;  // false: a switch, `--bf16`
};

/// Reads `key=value`, `--key value`, `--key=value`, `--key`. Throws UserError, with what should
/// have been written.
std::vector<Override> read_overrides(const std::vector<std::string>& words);

}  // namespace longspan
