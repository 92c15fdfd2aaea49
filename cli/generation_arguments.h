// Keys of `longspan chat` and `longspan generate`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "longspan/generation/assistant.h"

namespace longspan {

struct GenerationArguments {
  std::vector<std::string> words;  // words that belong to no key
  AssistantRequest request;
  bool seed_given = false;
  // For `longspan generate`:
  std::string output;
  int64_t batch_size = 8;
  std::optional<int64_t> max_samples;
};

/// Reads `key=value`, `--key value`, `--key=value` and `--key` (true). Throws UserError for an
/// unknown key (with the nearest key) and for an invalid value. `writes_file`: also accept the keys
/// of `longspan generate`.
GenerationArguments read_generation_arguments(const std::string& command,
                                              const Arguments& arguments, bool writes_file);

/// Returns the reader of the pixels of an assistant's pictures (session/picture_files.h).
FramePatches patches_for(const AssistantRequest& request, const Assistant& assistant);

/// A key of these commands, and its values if they can be listed.
struct GenerationKey {
  std::string name, wanted, help;
  std::vector<std::string> values;
  bool of_generate = false;  // not in `longspan chat`
};
std::vector<GenerationKey> generation_keys(bool writes_file);

/// Returns the help for all keys, one or more lines each.
std::string generation_keys_help(bool writes_file);

}  // namespace longspan
