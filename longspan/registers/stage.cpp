#include "longspan/registers/stage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"

namespace longspan {

const Stage& stage_named(std::string_view name) {
  for (const Stage* stage : all_stages()) {
    if (stage->name == name) return *stage;
  }
  std::vector<std::string_view> names;
  for (const Stage* stage : all_stages()) names.push_back(stage->name);
  throw UserError(
      fmt::format("stage: there is no {}; the stages are: {}", name, fmt::join(names, ", ")));
}

const Stage& stage_of(const MethodSettings& config) { return stage_named(config.stage); }

bool packs(const DataSettings& config, const Stage& stage) {
  return config.packing.value_or(stage.packs);
}

const StageKeys* group_of_key(std::string_view key) {
  for (const Stage* stage : all_stages()) {
    for (const StageKeys* group : stage->keys) {
      if (std::ranges::find(group->keys, key) != group->keys.end()) return group;
    }
  }
  return nullptr;
}

bool is_for_stage(std::string_view key, const Stage& stage) {
  const StageKeys* group = group_of_key(key);
  return group == nullptr || std::ranges::find(stage.keys, group) != stage.keys.end();
}

std::vector<std::string_view> sorted_names(std::vector<std::string_view> names) {
  std::ranges::sort(names);
  return names;
}

std::vector<std::string_view> names_of_stages_with(RowKind rows) {
  return names_of_stages_that([&](const Stage& stage) { return stage.rows == rows; });
}

std::string stages_of_key(std::string_view key) {
  if (group_of_key(key) == nullptr) return "";
  const auto names =
      names_of_stages_that([&](const Stage& stage) { return is_for_stage(key, stage); });
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string enumerated(const std::vector<std::string_view>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : " and ";
    text += names[i];
  }
  return text;
}

std::string refusal_of(const StageKeys& group) {
  const auto names = names_of_stages_that([&](const Stage& stage) {
    return std::ranges::find(stage.keys, &group) != stage.keys.end();
  });
  const std::string stages = enumerated(names);
  const std::string whose = !group.use.empty()  ? fmt::format("{}: stages {}", group.use, stages)
                            : names.size() == 1 ? fmt::format("stage: {}", stages)
                                                : fmt::format("the stages {}", stages);
  return fmt::format("{} {} for {}", enumerated({group.keys.begin(), group.keys.end()}),
                     group.keys.size() == 1 ? "is" : "are", whose);
}

}  // namespace longspan
