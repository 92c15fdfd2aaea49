// The commands of `longspan`.
#pragma once

#include <string>
#include <vector>

namespace longspan {

using Arguments = std::vector<std::string>;

struct Command {
  std::string name;
  std::string summary;  // one line of `longspan help`
  std::string help;     // `longspan help <name>`
  /// Returns the exit status. Throws UserError.
  int (*run)(const Arguments& arguments);
  /// Whether it computes with torch, which then must be the one that the program was compiled with.
  bool computes;
};

Command train_command();
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

/// All of them, in the order in which a new user meets them.
const std::vector<Command>& commands();

/// Says that there is no command `name`, and which is near, if one is.
std::string unknown_command(const std::string& name);

}  // namespace longspan
