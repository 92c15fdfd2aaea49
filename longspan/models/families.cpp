// The register of the model families. A family's description is in its own file.
#include "longspan/models/family.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace longspan {

extern const Family kQwen2, kQwen3, kQwen3Moe, kQwen3Next, kQwen3_5, kQwen3_5Moe, kLlama, kMistral,
    kGemma3, kPhi3, kGlm4, kGlm4Moe, kDeepseekV3, kGptOss;

std::span<const Family* const> all_families() {
  static constexpr const Family* kFamilies[] = {
      &kQwen2,   &kQwen3,  &kQwen3Moe, &kQwen3Next, &kQwen3_5, &kQwen3_5Moe, &kLlama,
      &kMistral, &kGemma3, &kPhi3,     &kGlm4,      &kGlm4Moe, &kDeepseekV3, &kGptOss};
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

const Family* family_of_type(std::string_view model_type) {
  for (const Family* family : all_families()) {
    if (model_type == family->model_type) return family;
    if (family->composite && model_type == family->composite->model_type) return family;
  }
  return nullptr;
}

bool reads_stored(const Family& family, const nlohmann::json& config) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || !found->is_object() || !family.reads_quantized) return false;
  const nlohmann::json method = found->value("quant_method", nlohmann::json());
  return method.is_string() && method.get<std::string>() == *family.reads_quantized;
}

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
