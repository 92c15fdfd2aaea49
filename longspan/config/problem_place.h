// Says whether the file or the command line gave the keys of a problem. No torch.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace longspan {

/// Names of keys with a value, by the place that gave it.
struct GivenKeys {
  std::set<std::string, std::less<>> in_file, in_words;
};

/// Returns the prefix of a problem (see check_config): `file`, "command line" or both, by where the
/// values of its keys came from. Those keys stand before the first semicolon; the remedy follows
/// it. Where none of them has a value, the problem concerns everything that was given.
std::string place_of(std::string_view problem, const std::string& file, const GivenKeys& given);

}  // namespace longspan
