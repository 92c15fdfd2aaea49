// `longspan help [command]`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.h"
#include "longspan/config/keys.h"
#include "longspan/config/nearest.h"
#include "longspan/config/user_error.h"
#include "longspan/text/print.h"

namespace longspan {

namespace {

void print_keys() {
  std::string section;
  for (const KeyDescription& key : describe_keys()) {
    if (key.section != section) print_out("\n{}\n", key.section);
    section = key.section;
    print_out("  {}: {}{}\n      {}\n", key.name, key.wants,
              key.default_value.empty() ? "" : fmt::format(" [{}]", key.default_value), key.help);
  }
  print_out("\nTaken, with nothing to change here\n");
  for (const IdleKey& key : idle_keys()) print_out("  {}: {}\n", key.name, key.reason);
  print_out(
      "\nLLaMA-Factory's other keys are refused by name, unless their value asks for nothing\n"
      "(`use_dora: false`, `fsdp: \"\"`).\n");
}

void print_overview() {
  print_out(
      "longspan: pre-training (stage pt), supervised fine-tuning (sft), reward models (rm), DPO "
      "(dpo) and KTO (kto) on long rows, with sequence parallelism.\n\n"
      "usage: longspan <command> [arguments]\n\n");
  for (const Command& command : commands()) {
    print_out("  {:<11} {}\n", command.name, command.summary);
  }
  print_out(
      "\n`longspan help train` explains the configuration file, `longspan help KEY` one of its "
      "keys,"
      "\n`longspan help <command>` the rest.\n");
}

std::string nearest_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& known : commands()) names.push_back(known.name);
  return nearest_name(name, names);
}

/// What a word that is neither a command nor a key may have been meant for.
std::string no_such(const std::string& name) {
  const std::string key = nearest_key(name);
  if (key.empty() || edit_distance(name, key) >= edit_distance(name, nearest_command(name))) {
    return unknown_command(name);
  }
  return fmt::format("there is no command and no key {}; the nearest key is {}", name, key);
}

int run(const Arguments& arguments) {
  if (arguments.empty()) {
    print_overview();
    return 0;
  }
  const auto command = std::ranges::find(commands(), arguments[0], &Command::name);
  if (command == commands().end()) {
    const std::string& name = arguments[0];
    if (const std::string text = explain_key(name); !text.empty()) {
      print_text(text);
      return 0;
    }
    throw UserError(no_such(name));
  }
  print_text(command->help);
  if (command->name == "train") print_keys();
  return 0;
}

}  // namespace

std::string unknown_command(const std::string& name) {
  return fmt::format("there is no command {}; the nearest is {}", name, nearest_command(name));
}

Command help_command() {
  return {"help", "explain a command or a key: longspan help train, longspan help cutoff_len",
          "Explains a command or a key: longspan help train, longspan help cutoff_len\n", run};
}

}  // namespace longspan
