// Keys of `longspan chat` and `longspan generate`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "longspan/generation/assistant.h"

namespace longspan {

struct GenerationArguments {
  std::vector<std::string> words;  // those that belong to no key
  AssistantRequest request;
  bool seed_given = false;
  // Of `longspan generate`:
  std::string output;
  int64_t batch_size = 8;
  std::optional<int64_t> max_samples;
};

/// Reads `key=value`, `--key value`, `--key=value` and `--key` (which is true). Throws UserError:
/// an unknown key (names the nearest), a value of the wrong kind. `writes_file`: keys of `longspan
/// generate` are known too.
GenerationArguments read_generation_arguments(const std::string& command,
                                              const Arguments& arguments, bool writes_file);

/// One key that these commands take, and its values where they can be listed.
struct GenerationKey {
  std::string name, wanted, help;
  std::vector<std::string> values;
  bool of_generate = false;  // `longspan chat` does not have it
};
std::vector<GenerationKey> generation_keys(bool writes_file);

/// What help says of all keys, a line or more for each.
std::string generation_keys_help(bool writes_file);

}  // namespace longspan
