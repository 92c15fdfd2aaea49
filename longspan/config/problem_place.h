// Which file, or the command line, gave the keys that a problem names. No torch.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace longspan {

/// The names of the keys that have a value, by where it was given.
struct GivenKeys {
  std::set<std::string, std::less<>> in_file, in_words;
};

/// What to put before a problem (see check_config): `file` where the values came from it, "command
/// line" where they came from there, both where they came from both. The keys at fault are those
/// before the first semicolon; what follows it is the remedy. A problem that names no key which has
/// a value is one of all that was given.
std::string place_of(std::string_view problem, const std::string& file, const GivenKeys& given);

}  // namespace longspan
