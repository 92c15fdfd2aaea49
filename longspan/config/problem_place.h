// Says whether the file or the command line gave the keys of a problem. No torch.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace longspan {

/// The names of the keys with a value, grouped by the source of the value.
struct GivenKeys {
  std::set<std::string, std::less<>> in_file, in_words;
};

/// Returns the prefix of a problem (see check_config): `file`, "command line" or both, whichever
/// gave values to the problem's keys. A problem names its keys before the first semicolon, and its
/// remedy after the semicolon. Where none of these keys has a value, the problem concerns the whole
/// configuration.
std::string place_of(std::string_view problem, const std::string& file, const GivenKeys& given);

}  // namespace longspan
