// The register of the model families. Each family's description is in its own file.
#include "longspan/models/family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "longspan/models/grouped_format.h"

namespace longspan {

extern const Family kQwen2, kQwen2Vl, kQwen2_5Vl, kQwen3Vl, kQwen3VlMoe, kQwen3, kQwen3Moe,
    kQwen3Next, kQwen3_5, kQwen3_5Moe, kLlama, kMistral, kGemma3, kPhi3, kGlm4, kGlm4Moe,
    kDeepseekV3, kGptOss;

std::span<const Family* const> all_families() {
  static constexpr const Family* kFamilies[] = {
      &kQwen2,   &kQwen3,      &kQwen3Moe, &kQwen3Next,  &kQwen2Vl,    &kQwen2_5Vl,
      &kQwen3Vl, &kQwen3VlMoe, &kQwen3_5,  &kQwen3_5Moe, &kLlama,      &kMistral,
      &kGemma3,  &kPhi3,       &kGlm4,     &kGlm4Moe,    &kDeepseekV3, &kGptOss};
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

bool method_is(const nlohmann::json& quantization, std::string_view wanted) {
  const nlohmann::json method = quantization.value("quant_method", nlohmann::json());
  return method.is_string() && method.get<std::string>() == wanted;
}

/// Reads DeepSeek's keys: fmt, and weight_block_size, which defaults to [128, 128].
void read_fp8_blocks(const JsonObject& keys, StoredNumbers& stored) {
  constexpr int64_t kMostOfBlock = int64_t{1} << 20;
  if (const auto format = keys.get<std::string>("fmt", "e4m3"); format != "e4m3") {
    keys.fail(fmt::format("fmt {} is not supported; e4m3 is", format));
  }
  const auto block = keys.get<std::vector<int64_t>>("weight_block_size",
                                                    {stored.block_rows, stored.block_columns});
  const auto counts = [](int64_t size) { return 0 < size && size <= kMostOfBlock; };
  if (block.size() != 2 || !std::ranges::all_of(block, counts)) {
    keys.fail(fmt::format("weight_block_size [{}] is not two numbers of 1 to {}, as [128, 128] is",
                          fmt::join(block, ", "), kMostOfBlock));
  }
  stored.block_rows = block[0];
  stored.block_columns = block[1];
}

}  // namespace

const Family* family_of_type(std::string_view model_type) {
  for (const Family* family : all_families()) {
    if (family->may_be_alone && model_type == family->model_type) return family;
    if (family->composite && model_type == family->composite->model_type) return family;
  }
  return nullptr;
}

const char* shown_type(const Family& family) {
  return family.may_be_alone ? family.model_type : family.composite->model_type;
}

std::optional<StoredNumbers> read_stored(const Family& family, const nlohmann::json& config,
                                         const std::string& path) {
  using Format = StoredNumbers::Format;
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return StoredNumbers{};
  if (!found->is_object()) return std::nullopt;
  const std::string place = path + ": quantization_config";
  if (auto grouped = read_grouped(*found, place)) return grouped;
  if (family.reads_quantized == Format::kPlain) return std::nullopt;
  const JsonObject keys(*found, place);
  StoredNumbers stored{.format = family.reads_quantized};
  switch (stored.format) {
    case Format::kPlain:
    case Format::kGrouped:
      return std::nullopt;
    case Format::kMxfp4:
      if (!method_is(*found, "mxfp4")) return std::nullopt;
      return stored;
    case Format::kFp8:
      if (!method_is(*found, "fp8")) return std::nullopt;
      read_fp8_blocks(keys, stored);
      return stored;
  }
  return std::nullopt;
}

std::string describe_families() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) {
    const std::string models = family->models;
    names.push_back(models.empty() ? shown_type(*family)
                                   : fmt::format("{} ({})", shown_type(*family), models));
  }
  return listed(names, "and");
}

std::string describe_composites() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) {
    if (family->composite) names.emplace_back(family->composite->model_type);
  }
  return listed(names, "and");
}

std::string describe_models_of_pictures() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) {
    if (family->composite && family->composite->read_vision != nullptr) {
      names.emplace_back(family->composite->model_type);
    }
  }
  return listed(names, "and");
}

std::string model_types() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) {
    if (family->may_be_alone) names.emplace_back(family->model_type);
  }
  return listed(names, "or");
}

}  // namespace longspan
