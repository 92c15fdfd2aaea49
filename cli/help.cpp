// `longspan help [command]`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/generation_arguments.h"
#include "longspan/base/user_error.h"
#include "longspan/config/keys.h"
#include "longspan/registers/stage.h"
#include "longspan/text/nearest.h"
#include "longspan/text/print.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

void print_keys() {
  std::string section;
  for (const KeyDescription& key : describe_keys()) {
    if (key.section != section) print_out("\n{}\n", key.section);
    section = key.section;
    print_out("  {}: {}{}{}\n      {}\n", key.name, key.wants,
              key.default_value.empty() ? "" : fmt::format(" [{}]", key.default_value),
              key.stages.empty() ? "" : fmt::format(" (stages: {})", key.stages), key.help);
  }
  print_out("\nThe opposite of another key\n");
  for (const OppositeKey& key : opposite_keys()) print_out("  {}: {}\n", key.name, key.help);
  print_out("\nAccepted, without effect here\n");
  for (const IdleKey& key : idle_keys()) print_out("  {}: {}\n", key.name, key.reason);
  print_out(
      "\nLLaMA-Factory's other keys are refused by name, unless their value is a no-op\n"
      "(`use_galore: false`, `fsdp: \"\"`).\n");
}

void print_overview() {
  std::vector<std::string> stages;
  for (const Stage* stage : all_stages()) {
    stages.push_back(
        fmt::format("{} ({}{})", stage->title, stages.empty() ? "stage " : "", stage->name));
  }
  print_out(
      "longspan: {} on long rows, with sequence parallelism.\n\n"
      "usage: longspan <command> [arguments]\n\n",
      enumerated({stages.begin(), stages.end()}));
  for (const Command& command : commands()) {
    print_out("  {:<11} {}\n", command.name, command.summary);
  }
  print_out(
      "\n`longspan help train` explains the configuration file, `longspan help KEY` one of its "
      "keys,"
      "\n`longspan help <command>` the rest.\n");
}

/// True if training refuses the key with a reference to chat and generate.
bool refers_to_generation(const std::string& name) {
  const auto& keys = unsupported_keys();
  const auto key = std::ranges::find(keys, name, &UnsupportedKey::name);
  return key != keys.end() && key->of_generation;
}

std::vector<GenerationKey> all_generation_keys() { return generation_keys(/*writes_file=*/true); }

/// Returns the help of `longspan help NAME` for a key of chat and generate; empty if they have no
/// such key.
std::string explain_generation_key(const std::string& name) {
  for (const GenerationKey& key : all_generation_keys()) {
    if (key.name != name) continue;
    return fmt::format("{} ({})\n  {}\n  Takes: {}\n", name,
                       key.of_generate ? "a key of `longspan generate`"
                                       : "a key of `longspan chat` and `longspan generate`",
                       key.help, key.wanted);
  }
  return "";
}

std::string nearest_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& known : commands()) names.push_back(known.name);
  return nearest_name(name, names);
}

std::string nearest_of_all_keys(const std::string& name) {
  std::vector<std::string> names;
  for (const GenerationKey& key : all_generation_keys()) names.push_back(key.name);
  const std::string key = nearest_key(name);
  const std::string other = nearest_name(name, names);
  const bool takes_other =
      key.empty() || (!other.empty() && edit_distance(name, other) < edit_distance(name, key));
  return takes_other ? other : key;
}

/// Returns suggestions for a word that is neither a command nor a key.
std::string no_such(const std::string& name) {
  const std::string key = nearest_of_all_keys(name), command = nearest_command(name);
  if (key.empty() && command.empty()) {
    return fmt::format(
        "there is no command and no key {}; `longspan help` names the commands, `longspan help "
        "train` and `longspan help generate` the keys",
        shortened(name, 60));
  }
  if (key.empty() ||
      (!command.empty() && edit_distance(name, key) >= edit_distance(name, command))) {
    return unknown_command(name);
  }
  return fmt::format("there is no command and no key {}; the nearest key is {}", name, key);
}

int run_help(const Arguments& arguments) {
  if (arguments.empty()) {
    print_overview();
    return 0;
  }
  const auto command = std::ranges::find(commands(), arguments[0], &Command::name);
  if (command == commands().end()) {
    const std::string& name = arguments[0];
    const std::string of_training = explain_key(name), of_others = explain_generation_key(name);
    if (of_training.empty() && of_others.empty()) throw UserError(no_such(name));
    // If training only refuses the key, only its users explain it.
    if (of_others.empty() || !refers_to_generation(name)) print_text(of_training);
    print_text(of_others);
    return 0;
  }
  print_text(command->help);
  if (command->name == "train") print_keys();
  return 0;
}

}  // namespace

std::string unknown_command(const std::string& name) {
  const std::string nearest = nearest_command(name);
  return fmt::format(
      "there is no command {}; {}", shortened(name, 60),
      nearest.empty() ? "`longspan help` names all" : fmt::format("the nearest is {}", nearest));
}

Command help_command() {
  return {"help", "explain a command or a key: longspan help train, longspan help cutoff_len",
          "Explains a command or a key: longspan help train, longspan help cutoff_len\n", run_help,
          /*computes=*/false};
}

}  // namespace longspan
