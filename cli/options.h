// Parses `--name value` options of the small commands.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "longspan/input/numbers.h"

namespace longspan {

class Options {
 public:
  /// Reads `--name value ...` and `--name=value`. Throws UserError for an unknown name (with the
  /// nearest name), for a word without an option, and for several values of an option that takes
  /// one value. `flag_names` take no value.
  Options(const std::string& command, const Arguments& arguments,
          const std::vector<std::string>& names, const std::vector<std::string>& list_names = {},
          const std::vector<std::string>& flag_names = {});

  std::optional<std::string> text(const std::string& name) const;
  /// Throws UserError if the option is missing.
  std::string required(const std::string& name) const;
  std::vector<std::string> required_list(const std::string& name) const;
  /// Returns the values, which may also be separated by commas; empty if the option is missing.
  std::vector<std::string> list(const std::string& name) const;
  bool flag(const std::string& name) const;
  /// Throws UserError if the value is not a whole number from `least` to `most`.
  std::optional<int64_t> whole_number(const std::string& name, int64_t least,
                                      int64_t most = kMostCounted) const;
  /// As whole_number(), for list().
  std::vector<int64_t> whole_numbers(const std::string& name, int64_t least,
                                     int64_t most = kMostCounted) const;

 private:
  int64_t number_from(const std::string& name, const std::string& text, int64_t least,
                      int64_t most) const;

  std::string command_;
  std::map<std::string, std::vector<std::string>> values_;
};

/// Throws UserError if `folder`, into which `command` will write, exists and is not an empty
/// folder.
void require_free_folder(const std::string& command, const std::string& folder);

}  // namespace longspan
