#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/models/grouped_format.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {

extern const GroupedFormat kGptq, kAwq;

std::span<const GroupedFormat* const> grouped_formats() {
  static constexpr const GroupedFormat* kFormats[] = {&kGptq, &kAwq};
  return kFormats;
}

namespace {

constexpr const char* kConfigKey = "quantization_config";
constexpr int64_t kLargestGroup = int64_t{1} << 20;

/// Keys that say how the codes were found, or which kernel a GPU may take, and change no number.
const std::set<std::string_view>& harmless_keys() {
  static const std::set<std::string_view> keys = {"quant_method",
                                                  "method",
                                                  "sym",
                                                  "desc_act",
                                                  "static_groups",
                                                  "true_sequential",
                                                  "act_group_aware",
                                                  "hyb_act",
                                                  "damp_percent",
                                                  "damp_auto_increment",
                                                  "mse",
                                                  "gptaq",
                                                  "foem",
                                                  "dataset",
                                                  "tokenizer",
                                                  "batch_size",
                                                  "pad_token_id",
                                                  "max_input_length",
                                                  "model_seqlen",
                                                  "cache_block_outputs",
                                                  "block_name_to_quantize",
                                                  "module_name_preceding_first_block",
                                                  "model_name_or_path",
                                                  "model_file_base_name",
                                                  "meta",
                                                  "quantizer",
                                                  "use_exllama",
                                                  "disable_exllama",
                                                  "exllama_config",
                                                  "use_cuda_fp16",
                                                  "backend",
                                                  "offload_to_disk",
                                                  "do_fuse",
                                                  "modules_to_fuse",
                                                  "fuse_max_seq_len"};
  return keys;
}

/// Keys that read_grouped() reads.
const std::set<std::string_view>& read_keys() {
  static const std::set<std::string_view> keys = {"bits",
                                                  "w_bit",
                                                  "group_size",
                                                  "q_group_size",
                                                  "checkpoint_format",
                                                  "version",
                                                  "format",
                                                  "modules_to_not_convert",
                                                  "modules_in_block_to_quantize"};
  return keys;
}

/// Keys that must have one value, which is also the default.
struct FixedKey {
  std::string name;
  nlohmann::json value;
};
const std::vector<FixedKey>& fixed_keys() {
  static const std::vector<FixedKey> keys = {
      {"zero_point", true},
      {std::string(kHeadPrefix.substr(0, kHeadPrefix.size() - 1)), false},
      {"is_marlin_format", false},
      {"pack_dtype", "int32"},
      {"dynamic", nlohmann::json::object()}};
  return keys;
}

void require_known_keys(const JsonObject& keys, const GroupedFormat& format) {
  for (const auto& [key, value] : keys.json().items()) {
    if (value.is_null() || harmless_keys().contains(key) || read_keys().contains(key)) continue;
    const auto fixed = std::ranges::find_if(
        fixed_keys(), [&name = key](const FixedKey& one) { return name == one.name; });
    if (fixed == fixed_keys().end()) {
      keys.fail(fmt::format(
          "{} is not known for {}; a key may change how the weights are read. Give a folder "
          "without it, or the original model",
          key, format.name));
    }
    if (value != fixed->value) {
      keys.fail(fmt::format("{}: {} is not supported for {}; {} is. Give the original model", key,
                            value.dump(), format.name, fixed->value.dump()));
    }
  }
}

/// Returns the value of the first key that the object has.
template <typename T>
std::optional<T> first_of(const JsonObject& keys, const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (keys.has(name)) return keys.get<T>(name);
  }
  return std::nullopt;
}

int zero_offset_of(const JsonObject& keys, const GroupedFormat& format) {
  std::string given = first_of<std::string>(keys, {"checkpoint_format", "version", "format"})
                          .value_or(std::string(format.versions.front().name));
  std::ranges::transform(given, given.begin(), [](unsigned char c) { return std::tolower(c); });
  std::vector<std::string_view> names;
  for (const GroupedFormat::Version& version : format.versions) {
    if (given == version.name) return version.zero_offset;
    names.push_back(version.name);
  }
  keys.fail(fmt::format("the layout {} of {} is not supported; {} is. Give the original model",
                        given, format.name, fmt::join(names, " or ")));
}

/// Returns names of linear layers. A list of lists is one list.
std::vector<std::string> names_in(const JsonObject& keys, const char* key) {
  std::vector<std::string> names;
  if (!keys.has(key)) return names;
  const auto add = [&](const nlohmann::json& name) {
    const auto is_part = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; };
    if (!name.is_string() || name.get<std::string>().empty() ||
        !std::ranges::all_of(name.get<std::string>(), is_part)) {
      keys.fail(
          fmt::format("{} has {}, which is not a part of a linear layer's name", key, name.dump()));
    }
    names.push_back(name.get<std::string>());
  };
  for (const nlohmann::json& entry : keys.list(key)) {
    if (entry.is_array()) {
      std::ranges::for_each(entry, add);
    } else {
      add(entry);
    }
  }
  return names;
}

}  // namespace

std::optional<StoredNumbers> read_grouped(const nlohmann::json& quantization,
                                          const std::string& source) {
  const auto method = quantization.find("quant_method");
  const auto formats = grouped_formats();
  const auto found = std::ranges::find_if(formats, [&](const GroupedFormat* format) {
    return method != quantization.end() && *method == format->method;
  });
  if (found == formats.end()) return std::nullopt;
  const GroupedFormat& format = **found;
  const JsonObject keys(quantization, source);
  require_known_keys(keys, format);
  const auto bits = first_of<int64_t>(keys, {"bits", "w_bit"});
  if (!bits) keys.fail(fmt::format("bits is missing for {}", format.name));
  if (*bits != 4) {
    keys.fail(fmt::format("bits: {} is not supported for {}; 4 is. Give the original model", *bits,
                          format.name));
  }
  const int64_t size = first_of<int64_t>(keys, {"group_size", "q_group_size"}).value_or(128);
  if (size == 0 || size < -1 || size > kLargestGroup) {
    keys.fail(
        fmt::format("group_size {} is not -1 (all columns) or from 1 to {}", size, kLargestGroup));
  }
  return StoredNumbers{.format = StoredNumbers::Format::kGrouped,
                       .grouped = &format,
                       .packed = {.format = {.group_size = size},
                                  .kept = names_in(keys, "modules_to_not_convert"),
                                  .only = names_in(keys, "modules_in_block_to_quantize")},
                       .zero_offset = zero_offset_of(keys, format)};
}

std::string with_own_quantization(const std::string& folder, std::string text) {
  for (const GroupedFormat* format : grouped_formats()) {
    const std::string path = model_file(folder, format->own_file);
    const auto own = read_text_file_if_there(path, "keys of the quantization");
    if (!own) continue;
    nlohmann::ordered_json whole = parse_ordered_json(text, model_file(folder, "config.json"));
    nlohmann::ordered_json keys = parse_ordered_json(*own, path);
    if (!keys.is_object()) {
      throw UserError(
          fmt::format("{}: a JSON object is expected. Copy the file from the model anew, "
                      "or remove it if the weights are not quantized.",
                      path));
    }
    if (!whole.is_object() || whole.contains(kConfigKey)) return text;
    keys["quant_method"] = format->method;
    whole[kConfigKey] = std::move(keys);
    return whole.dump(2) + "\n";
  }
  return text;
}

}  // namespace longspan
