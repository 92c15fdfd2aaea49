#include "longspan/plan/method.h"

#include <fmt/format.h>

#include "longspan/config/user_error.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

const Method* method_named(std::string_view name) {
  for (const Method* method : all_methods()) {
    if (method->name == name) return method;
  }
  throw UserError(fmt::format(
      "sequence_parallel_mode: {} is not a mode. The modes are: {}. Write auto, or leave the key "
      "out, to have one chosen.",
      name, names_of(all_methods())));
}

std::string names_of(std::span<const Method* const> methods, std::string_view between) {
  std::string names;
  for (const Method* method : methods) {
    if (!names.empty()) names += between;
    names += method->name;
  }
  return names;
}

std::string describe_method(const ParallelPlan& plan) {
  std::string text(plan.method->name);
  for (const MethodKey* key : plan.method->keys) text += key->words(plan);
  return text;
}

bool can_split(const Method& method, int sequence_size, const AttentionSpec& spec) {
  return method.refusal(sequence_size, spec).empty();
}

std::vector<const Method*> methods_that_split(int sequence_size, const AttentionSpec& spec) {
  return methods_that([&](const Method& method) { return can_split(method, sequence_size, spec); });
}

}  // namespace longspan
