// `longspan help [command]`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.h"
#include "longspan/config/keys.h"
#include "longspan/config/nearest.h"
#include "longspan/config/user_error.h"

namespace longspan {

namespace {

void print_keys() {
  std::string section;
  for (const KeyDescription& key : describe_keys()) {
    if (key.section != section) fmt::print("\n{}\n", key.section);
    section = key.section;
    fmt::print("  {}: {}{}\n      {}\n", key.name, key.wants,
               key.default_value.empty() ? "" : fmt::format(" [{}]", key.default_value), key.help);
  }
  fmt::print("\nTaken, with nothing to change here\n");
  for (const IdleKey& key : idle_keys()) fmt::print("  {}: {}\n", key.name, key.reason);
  fmt::print(
      "\nLLaMA-Factory's other keys are refused by name, unless their value asks for nothing\n"
      "(`deepspeed: null`, `packing: false`, `report_to: none`).\n");
}

void print_overview() {
  fmt::print(
      "longspan: supervised fine-tuning of language models on long rows, with sequence "
      "parallelism.\n\nusage: longspan <command> [arguments]\n\n");
  for (const Command& command : commands()) {
    fmt::print("  {:<10} {}\n", command.name, command.summary);
  }
  fmt::print(
      "\n`longspan help train` explains the configuration file; `longspan help <command>` the "
      "rest.\n");
}

int run(const Arguments& arguments) {
  if (arguments.empty()) {
    print_overview();
    return 0;
  }
  const auto command = std::ranges::find(commands(), arguments[0], &Command::name);
  if (command == commands().end()) {
    std::vector<std::string> names;
    for (const Command& known : commands()) names.push_back(known.name);
    throw UserError(fmt::format("there is no command {}; the nearest is {}", arguments[0],
                                nearest_name(arguments[0], names)));
  }
  fmt::print("{}", command->help);
  if (command->name == "train") print_keys();
  return 0;
}

}  // namespace

Command help_command() {
  return {"help", "explain a command: longspan help train",
          "Explains a command: longspan help train\n", run};
}

}  // namespace longspan
