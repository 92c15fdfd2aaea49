#include "longspan/registers/method.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"

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

bool takes(const Method& method, const MethodKey& key) {
  return std::ranges::find(method.keys, &key) != method.keys.end();
}

std::vector<const Method*> methods_that_take(const MethodKey& key) {
  return methods_that([&](const Method& method) { return takes(method, key); });
}

}  // namespace longspan
