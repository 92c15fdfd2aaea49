#include "longspan/registers/update_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/settings/optimization_settings.h"

namespace longspan {

const UpdateRule& update_rule_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const UpdateRule* rule : all_update_rules()) {
    for (const std::string_view its_name : rule->names) {
      if (its_name == name) return *rule;
      names.push_back(its_name);
    }
  }
  throw UserError(
      fmt::format("optim: there is no {}; the optimizers are: {}", name, fmt::join(names, ", ")));
}

const UpdateRule& update_rule_of(const OptimizationSettings& config) {
  return update_rule_named(config.optim);
}

bool wants_nothing_whole(const ParameterSpec&) { return false; }

int64_t works_in_place(const HeldParameter&, bool) { return 0; }

}  // namespace longspan
