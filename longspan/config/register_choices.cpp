#include "longspan/config/register_choices.h"

#include <fmt/format.h>

#include "longspan/registers/method.h"
#include "longspan/registers/stage.h"
#include "longspan/registers/update_rule.h"

namespace longspan {

std::vector<std::string_view> auto_or_methods() {
  std::vector<std::string_view> names{"auto"};
  for (const Method* method : all_methods()) names.push_back(method->name);
  return names;
}

std::vector<std::string_view> names_of_stages() {
  std::vector<std::string_view> names;
  for (const Stage* stage : all_stages()) names.push_back(stage->name);
  return names;
}

std::string help_of_stages() {
  std::string help;
  for (const Stage* stage : all_stages()) {
    help += fmt::format("{}{}: {}.", help.empty() ? "" : " ", stage->name, stage->help);
  }
  return help;
}

std::vector<std::string_view> names_of_optimizers() {
  std::vector<std::string_view> names;
  for (const UpdateRule* rule : all_update_rules()) {
    names.insert(names.end(), rule->names.begin(), rule->names.end());
  }
  return names;
}

std::string help_of_optimizers() {
  std::string help;
  for (const UpdateRule* rule : all_update_rules()) {
    help += fmt::format("{}{}", help.empty() ? "" : "; ", rule->help);
  }
  return help + ".";
}

/// Some methods save memory with waves, and default to one wave. Others overlap work with them.
std::string help_of_waves() {
  const auto in_one = [](const Method& method) {
    return takes(method, kHeadWaves) && method.head_waves.own == 1;
  };
  std::string help =
      "Number of parts in which heads are exchanged and attended, a few heads at a time. " +
      names_of(methods_that(in_one)) + ": 4 or more parts save memory";
  for (const Method* method : all_methods()) {
    if (!takes(*method, kHeadWaves) || in_one(*method)) continue;
    help += fmt::format("; {}: number of parts that overlap, left out: {}", method->name,
                        method->head_waves.own);
  }
  return help + ".";
}

}  // namespace longspan
