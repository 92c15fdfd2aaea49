// The register of the model families. A family's description is in its own file.
#include "longspan/models/family.h"

#include <fmt/format.h>

#include <vector>

namespace longspan {

extern const Family kQwen2, kQwen3, kQwen3Moe, kQwen3_5, kLlama, kMistral, kGemma3, kPhi3, kGlm4Moe;

std::span<const Family* const> all_families() {
  static constexpr const Family* kFamilies[] = {&kQwen2,   &kQwen3,  &kQwen3Moe, &kQwen3_5, &kLlama,
                                                &kMistral, &kGemma3, &kPhi3,     &kGlm4Moe};
  return kFamilies;
}

namespace {

/// "a, b and c"
std::string listed(const std::vector<std::string>& names, const char* last_word) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : fmt::format(" {} ", last_word);
    text += names[i];
  }
  return text;
}

}  // namespace

std::string describe_families() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) {
    const std::string models = family->models;
    names.push_back(models.empty() ? family->model_type
                                   : fmt::format("{} ({})", family->model_type, models));
  }
  return listed(names, "and");
}

std::string model_types() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) names.emplace_back(family->model_type);
  return listed(names, "or");
}

}  // namespace longspan
