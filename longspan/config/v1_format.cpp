#include "longspan/config/v1_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "longspan/base/names.h"
#include "longspan/input/json_text.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using V1Json = nlohmann::json;

/// A key of v1, or of one of v1's sections.
struct V1Key {
  std::string_view name;
  std::string_view to;             // key here; several: with blanks between; empty: no effect
  std::string_view fallback = {};  // v1's default, as JSON; empty: the default here
  std::string_view reason = {};    // of no effect
};

/// Other values for the keys here: a word of v1, and what the word sets.
struct V1Word {
  std::string_view key, word;
  std::string_view sets;  // a JSON object
};

/// A kind of section, by the value of the section's key `name`.
struct V1Kind {
  std::string_view name;
  std::string_view sets;  // a JSON object
  std::vector<V1Key> keys;
};

struct V1Section {
  std::string_view name;
  std::vector<V1Kind> kinds;        // none: any, without effect
  std::string_view without = "{}";  // what a missing section sets
  std::string_view reason = {};     // of no effect
};

constexpr std::string_view kV1Kernels = "Longspan has its own kernels";
constexpr std::string_view kV1Sampling = "training samples nothing";

const std::vector<V1Key>& v1_keys() {
  static const std::vector<V1Key> keys = {
      {"model", "model_name_or_path"},
      {"template", "template", "\"qwen3_nothink\""},
      {"trust_remote_code", "trust_remote_code"},
      {"flash_attn", "", {}, kV1Kernels},
      {"model_class", "model_class"},
      {"train_dataset", "dataset"},
      {"eval_dataset", "", {}, "v1 evaluates nothing"},
      {"output_dir", "output_dir"},
      {"micro_batch_size", "per_device_train_batch_size", "1"},
      {"global_batch_size", "global_batch_size"},
      {"cutoff_len", "cutoff_len", "2048"},
      {"learning_rate", "learning_rate", "1e-4"},
      {"num_train_epochs", "num_train_epochs", "3"},
      {"max_steps", "max_steps"},
      {"max_grad_norm", "max_grad_norm", "1.0"},
      {"bf16", "bf16", "true"},
      {"batching_strategy", "batching_strategy"},
      {"batching_workers", "", {}, "rows are tokenized by threads of one process"},
      {"enable_activation_checkpointing", "gradient_checkpointing", "true"},
      {"seed", "seed", "42"},
      {"full_determinism", "full_determinism"},
      {"resume_from_checkpoint", "resume_from_checkpoint"},
      {"save_steps", "save_steps"},
      {"save_epochs", "save_epochs"},
      {"save_ckpt_as_hf", "", {}, "checkpoints are Hugging Face folders"},
      {"save_total_limit", "save_total_limit"},
      {"logging_steps", "logging_steps", "1"},
      {"sample_backend", "", {}, kV1Sampling},
      {"max_new_tokens", "", {}, kV1Sampling}};
  return keys;
}

/// Settings that v1's trainer fixes, without keys.
constexpr std::string_view kV1Fixed =
    R"({"stage": "sft", "do_train": true, "lr_scheduler_type": "constant", "weight_decay": 0.01})";

const std::vector<V1Word>& v1_words() {
  static const std::vector<V1Word> words = {
      {"template", "chatml", R"({"template": "chatml"})"},
      {"template", "qwen3", R"({"template": "qwen3"})"},
      {"template", "qwen3_nothink", R"({"template": "qwen3_nothink"})"},
      {"model_class", "llm", "{}"},
      {"batching_strategy", "normal", "{}"},
      {"batching_strategy", "padding_free", "{}"},
      {"batching_strategy", "dynamic_batching", R"({"packing": true, "neat_packing": true})"},
      {"batching_strategy", "dynamic_padding_free", R"({"packing": true, "neat_packing": true})"}};
  return words;
}

const std::vector<V1Section>& v1_sections() {
  static const std::vector<V1Section> sections = {
      {"peft_config",
       {{"lora",
         R"({"finetuning_type": "lora"})",
         {{"r", "lora_rank", "8"},
          {"lora_alpha", "lora_alpha", "16"},
          {"lora_dropout", "lora_dropout", "0.05"},
          {"target_modules", "lora_target", "\"all\""},
          {"use_rslora", "use_rslora"},
          {"use_dora", "use_dora"},
          {"modules_to_save", "additional_target"},
          {"adapter_name_or_path", "adapter_name_or_path"},
          {"export_dir", "export_dir"},
          {"export_size", "export_size"},
          {"export_hub_model_id", "export_hub_model_id"},
          {"export_legacy_format", "export_legacy_format"},
          {"infer_dtype", "infer_dtype"}}},
        {"freeze",
         R"({"finetuning_type": "freeze"})",
         {{"freeze_trainable_layers", "freeze_trainable_layers", "2"},
          {"freeze_trainable_modules", "freeze_trainable_modules", "\"all\""},
          {"freeze_extra_modules", "freeze_extra_modules"},
          {"cast_trainable_params_to_fp32", "", {}, "bf16 keeps trained weights in fp32"}}}},
       R"({"finetuning_type": "full"})"},
      {"dist_config",
       {{"fsdp2",
         R"({"zero_stage": 3})",
         {{"cp_mode", "sequence_parallel_mode"},
          {"cp_size", "sequence_parallel_size"},
          {"mp_shard_size", "zero_shard_size"},
          {"mp_replicate_size", "", {}, "the number of processes decides"},
          {"dp_size", "", {}, "the number of processes decides"},
          {"offload_params", "offload_params offload_optimizer"},
          {"timeout", "ddp_timeout", "18000"},
          {"dcp_path", "dcp_path"},
          {"reshard_after_forward", "", {}, "ZeRO 3 gathers a layer when it is used"},
          {"pin_memory", "", {}, "host memory of offloading is always pinned"}}},
        {"deepspeed", "{}", {{"config_file", "deepspeed"}, {"timeout", "ddp_timeout", "18000"}}}}},
      {"quant_config",
       {{"bnb",
         "{}",
         {{"quantization_bit", "quantization_bit", "4"},
          {"quantization_type", "quantization_type"},
          {"double_quantization", "double_quantization"}}},
        {"auto",
         "{}",
         {{"quantization_bit", "quantization_bit"},
          {"quantization_type", "quantization_type"},
          {"double_quantization", "double_quantization"}}}}},
      {"kernel_config", {}, "{}", kV1Kernels},
      {"init_config", {}, "{}", "weights are always read one tensor at a time"}};
  return sections;
}

/// Keys by which a file is recognized. None of them is a key of this program.
constexpr std::string_view kMarksOfV1[] = {"model",
                                           "model_class",
                                           "train_dataset",
                                           "micro_batch_size",
                                           "kernel_config",
                                           "dist_config",
                                           "quant_config",
                                           "peft_config",
                                           "init_config",
                                           "optim_config",
                                           "lr_scheduler_config",
                                           "sample_backend",
                                           "batching_strategy",
                                           "batching_workers",
                                           "enable_activation_checkpointing",
                                           "save_ckpt_as_hf"};

class V1Translator {
 public:
  V1Translator(const V1Json& given, bool trains) : given_(given), trains_(trains) {
    if (trains) set_all(kV1Fixed);
  }

  V1Translation translate() {
    for (const V1Key& key : v1_keys()) take(key, given_, "");
    for (const V1Section& section : v1_sections()) take_section(section);
    for (const std::string_view plugin : {"optim_config", "lr_scheduler_config"}) {
      if (!value_of_given(plugin).is_null()) {
        problem(plugin, "v1 has no such plugins; give optim, lr_scheduler_type and their keys");
      }
    }
    take_saving();
    for (const auto& [name, value] : given_.items()) {
      if (!taken_.contains(name)) set(name, value);
    }
    if (!idle_.empty()) {
      result_.notes.push_back(fmt::format("Keys of LLaMA-Factory's v1 without effect here: {}.",
                                          fmt::join(idle_, "; ")));
    }
    result_.values = values_.dump();
    return std::move(result_);
  }

 private:
  void set(std::string_view key, const V1Json& value) { values_[std::string(key)] = value; }

  void set_all(std::string_view object) {
    values_.update(parse_json(object, "the table of v1's keys"));
  }

  void problem(std::string_view key, std::string_view text) {
    result_.problems.push_back(fmt::format("{}: {}", key, text));
  }

  V1Json value_of_given(std::string_view name) {
    taken_.insert(std::string(name));
    return given_.value(std::string(name), V1Json());
  }

  /// Takes a key of `object`. `section`: its name with a period.
  void take(const V1Key& key, const V1Json& object, const std::string& section) {
    if (section.empty()) taken_.insert(std::string(key.name));
    V1Json value = object.value(std::string(key.name), V1Json());
    if (key.to.empty()) {
      if (!value.is_null())
        idle_.push_back(fmt::format("{}{} ({})", section, key.name, key.reason));
      return;
    }
    const bool given = !value.is_null();
    if (!given && trains_ && !key.fallback.empty())
      value = parse_json(key.fallback, std::string(key.name));
    if (value.is_null() || take_word(key.name, value)) return;
    if (given && key.name == "dcp_path") {
      return problem(section + "dcp_path", "weights are read from the folder `model`; remove it");
    }
    for (const std::string& to : split_blanks(key.to)) set(to, value);
  }

  static std::vector<std::string> split_blanks(std::string_view text) {
    std::string commas(text);
    std::ranges::replace(commas, ' ', ',');
    return split_names(commas);
  }

  /// Takes a value of a key with words. Returns whether the key has words.
  bool take_word(std::string_view key, const V1Json& value) {
    std::vector<std::string> known;
    for (const V1Word& word : v1_words()) {
      if (word.key != key) continue;
      if (value == word.word) {
        set_all(word.sets);
        return true;
      }
      known.emplace_back(word.word);
    }
    if (known.empty()) return false;
    problem(key, fmt::format("{} was given; wanted is {}", shortened(value.dump(), 60),
                             fmt::join(known, ", ")));
    return true;
  }

  void take_section(const V1Section& section) {
    const std::string name(section.name);
    const V1Json value = value_of_given(name);
    if (value.is_null()) return set_all(section.without);
    if (section.kinds.empty()) {
      idle_.push_back(fmt::format("{} ({})", name, section.reason));
      return;
    }
    std::vector<std::string> names;
    for (const V1Kind& kind : section.kinds) names.emplace_back(kind.name);
    const V1Json called = value.is_object() ? value.value("name", V1Json()) : V1Json();
    const auto kind = std::ranges::find_if(
        section.kinds, [&](const V1Kind& known) { return called == known.name; });
    if (kind == section.kinds.end()) {
      return problem(name, fmt::format("its name is {}; wanted is {}",
                                       called.is_null() ? "missing" : shortened(called.dump(), 60),
                                       fmt::join(names, " or ")));
    }
    set_all(kind->sets);
    std::vector<std::string> known;
    for (const V1Key& key : kind->keys) {
      known.emplace_back(key.name);
      take(key, value, name + ".");
    }
    for (const auto& [key, unknown] : value.items()) {
      if (key == "name" || std::ranges::find(known, key) != known.end()) continue;
      problem(name, fmt::format("unknown key {}; {}", shortened(key, 60),
                                suggestion(key, known, "known key")));
    }
  }

  /// Without save_steps and save_epochs, v1 saves no checkpoints.
  void take_saving() {
    const V1Json epochs = values_.value("save_epochs", V1Json());
    values_.erase("save_epochs");
    if (!epochs.is_null() && epochs != 1) {
      problem("save_epochs", "1 or save_steps is supported; give save_steps");
    }
    const bool by_steps = values_.contains("save_steps");
    if (trains_) set("save_strategy", epochs == 1 ? "epoch" : by_steps ? "steps" : "no");
  }

  const V1Json& given_;
  bool trains_;
  V1Json values_ = V1Json::object();
  std::set<std::string> taken_;
  std::vector<std::string> idle_;
  V1Translation result_;
};

}  // namespace

bool is_v1_format(const std::vector<std::string>& keys) {
  return std::ranges::count_if(keys, [](const std::string& key) {
           return std::ranges::find(kMarksOfV1, key) != std::end(kMarksOfV1);
         }) >= 2;
}

bool is_v1_key(const std::string& key) {
  const std::string first = key.substr(0, key.find('.'));
  return first == "save_epochs" || std::ranges::find(kMarksOfV1, first) != std::end(kMarksOfV1);
}

V1Translation translate_v1(const nlohmann::json& given, bool trains) {
  return V1Translator(given, trains).translate();
}

}  // namespace longspan
