#include "longspan/checkpoint/plain_lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/text/shown.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

/// A key of PEFT's LoraConfig and the values under which an adapter is plain LoRA.
struct KnownKey {
  enum class Harmless {
    kAny,      /// read elsewhere, or without effect on the computation
    kFalse,    ///< false or null
    kNothing,  /// null, false or empty
    kListed,   ///< null or one of `values`
  };
  std::string_view name;
  Harmless harmless;
  std::vector<Json> values = {};
};

const std::vector<KnownKey>& known_keys() {
  using enum KnownKey::Harmless;
  static const std::vector<KnownKey> keys = {
      // Keys that load_adapter and its callers read.
      {"r", kAny},
      {"lora_alpha", kAny},
      {"lora_dropout", kAny},
      {"use_rslora", kAny},
      {"use_dora", kAny},
      {"modules_to_save", kAny},
      {"target_parameters", kAny},
      {"base_model_name_or_path", kAny},
      {"peft_type", kListed, {"LORA"}},
      // The modules with an adapter; the names of the matrices say the same.
      {"target_modules", kAny},
      {"exclude_modules", kAny},
      {"layers_to_transform", kAny},
      {"layers_pattern", kAny},
      // Facts on the model and on PEFT, without effect on the computation. For some tasks,
      // task_type adds a layer beside the adapter; that layer is refused as a tensor.
      {"task_type", kAny},
      {"revision", kAny},
      {"auto_mapping", kAny},
      {"peft_version", kAny},
      {"inference_mode", kAny},
      {"runtime_config", kAny},
      {"megatron_core", kAny},
      // Ties adapters of the embedding and the head, which are refused as tensors.
      {"ensure_weight_tying", kAny},
      // How the two matrices were initialized. The listed values leave the model's weights
      // unchanged. PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA change the weights, so the adapter does
      // not fit the named model.
      {"init_lora_weights", kListed, {true, false, "gaussian", "orthogonal", "eva"}},
      // PEFT reads these keys only with one value of init_lora_weights, or with use_qalora.
      {"eva_config", kAny},
      {"corda_config", kAny},
      {"loftq_config", kAny},
      {"lora_ga_config", kAny},
      {"qalora_group_size", kAny},
      // Keys of other computations.
      {"bias", kListed, {"none"}},
      {"fan_in_fan_out", kFalse},
      {"lora_bias", kFalse},
      {"use_qalora", kFalse},
      {"rank_pattern", kNothing},
      {"alpha_pattern", kNothing},
      {"layer_replication", kNothing},
      {"trainable_token_indices", kNothing},
      {"megatron_config", kNothing},
      {"alora_invocation_tokens", kNothing},
      {"arrow_config", kNothing},
      {"kasa_config", kNothing},
      {"monteclora_config", kNothing},
      {"use_bdlora", kNothing},
      {"velora_config", kNothing},
  };
  return keys;
}

bool asks_for_nothing(const Json& value) {
  return value.is_null() || value == false || value == "" ||
         (value.is_structured() && value.empty());
}

bool is_harmless(const JsonObject& config, const KnownKey& key, const Json& value) {
  switch (key.harmless) {
    case KnownKey::Harmless::kAny:
      return true;
    case KnownKey::Harmless::kFalse:
      return !config.get<bool>(key.name, false);
    case KnownKey::Harmless::kNothing:
      return asks_for_nothing(value);
    case KnownKey::Harmless::kListed:
      return value.is_null() || std::ranges::find(key.values, value) != key.values.end();
  }
  return false;
}

}  // namespace

void require_plain_lora(const JsonObject& config) {
  constexpr const char* kMerge =
      "Merge the adapter into its model with PEFT (merge_and_unload) and train from that";
  for (const auto& [name, value] : config.json().items()) {
    const auto known = std::ranges::find(known_keys(), name, &KnownKey::name);
    const std::string text = shortened(value.dump(), 60);
    if (known != known_keys().end()) {
      if (is_harmless(config, *known, value)) continue;
      const bool may_grow = name == "modules_to_save";
      config.fail(fmt::format(
          "{} is {}; only plain LoRA is supported. {}{}", name, text, kMerge,
          may_grow ? " (after resize_token_embeddings, where the vocabulary was grown)" : ""));
    }
    // A newer PEFT writes new keys with values that leave them unused.
    if (asks_for_nothing(value)) continue;
    config.fail(
        fmt::format("{} is {}; the key is not known, and may change what the adapter "
                    "computes. {}; or remove the key where it changes nothing",
                    shortened(name, 60), text, kMerge));
  }
}

}  // namespace longspan
