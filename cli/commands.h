// The commands of `longspan`.
#pragma once

#include <string>
#include <vector>

namespace longspan {

using Arguments = std::vector<std::string>;

struct Command {
  std::string name;
  std::string summary;  // line in `longspan help`
  std::string help;     // `longspan help <name>`
  /// Returns the exit status. Throws UserError.
  int (*run)(const Arguments& arguments);
  /// True if the command computes with torch. The loaded torch must then be the version that the
  /// program was compiled with.
  bool computes;
};

Command train_command();
Command data_command();
Command chat_command();
Command generate_command();
Command export_command();
Command init_command();
Command tokenizer_command();
Command compare_command();
Command bench_command();
Command schema_command();
Command completion_command();
Command env_command();
Command version_command();
Command help_command();

/// All commands, in the order in which a new user meets them.
const std::vector<Command>& commands();

/// Returns the error for an unknown command, with the nearest command, if any.
std::string unknown_command(const std::string& name);

}  // namespace longspan
