#include "longspan/config/deepspeed.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "longspan/config/config.h"
#include "longspan/input/json_text.h"
#include "longspan/input/numbers.h"
#include "longspan/settings/choices.h"

namespace longspan {
namespace {

using nlohmann::json;

/// Sizes of buckets and the like, which affect no result.
const std::set<std::string> kTuning = {"steps_per_print",
                                       "wall_clock_breakdown",
                                       "dump_state",
                                       "zero_allow_untested_optimizer",
                                       "zero_force_ds_cpu_optimizer",
                                       "prescale_gradients",
                                       "gradient_predivide_factor",
                                       "memory_breakdown"};
const std::set<std::string> kZeroTuning = {"allgather_partitions",
                                           "allgather_bucket_size",
                                           "overlap_comm",
                                           "reduce_scatter",
                                           "reduce_bucket_size",
                                           "contiguous_gradients",
                                           "round_robin_gradients",
                                           "sub_group_size",
                                           "stage3_max_live_parameters",
                                           "stage3_max_reuse_distance",
                                           "stage3_prefetch_bucket_size",
                                           "stage3_param_persistence_threshold",
                                           "stage3_model_persistence_threshold",
                                           "stage3_gather_16bit_weights_on_model_save",
                                           "stage3_gather_fp16_weights_on_model_save",
                                           "stage3_module_granularity_threshold",
                                           "ignore_unused_parameters",
                                           "legacy_stage1",
                                           "mics_hierarchical_params_gather",
                                           "memory_efficient_linear",
                                           "use_multi_rank_bucket_allreduce",
                                           "param_persistence_threshold",
                                           "model_persistence_threshold",
                                           "prefetch_bucket_size",
                                           "max_live_parameters",
                                           "max_reuse_distance",
                                           "gather_16bit_weights_on_model_save",
                                           "elastic_checkpoint"};
const std::set<std::string> kOffloadTuning = {"pin_memory",    "buffer_count",  "buffer_size",
                                              "max_in_cpu",    "fast_init",     "pipeline",
                                              "pipeline_read", "pipeline_write"};

/// When gradients are added up within a backward.
const std::set<std::string> kBf16Tuning = {"immediate_grad_update"};

class Reader {
 public:
  Reader(Config& config, const json& file) : config_(config), file_(file) {}

  std::vector<std::string> read() {
    for (const auto& [key, value] : file_.items()) {
      if (kTuning.contains(key) || asks_nothing(value)) continue;
      if (key == "zero_optimization") {
        read_zero(value);
      } else if (key == "fp16") {
        // The section's other keys apply only to fp16, which is refused.
        if (!asks_nothing(enabled(value))) refuse("fp16.enabled", enabled(value), "use bf16");
      } else if (key == "bf16" || key == "bfloat16") {
        require_known_of_bf16(key, value);
        require_equal("bf16.enabled", enabled(value),
                      computes_in_bf16(config_.model, config_.optimization), "bf16 (or pure_bf16)");
      } else if (key == "train_micro_batch_size_per_gpu") {
        require_equal(key, value, config_.optimization.per_device_train_batch_size,
                      "per_device_train_batch_size");
      } else if (key == "gradient_accumulation_steps") {
        require_equal(key, value, config_.optimization.gradient_accumulation_steps, key);
      } else if (key == "gradient_clipping") {
        require_equal(key, value, config_.optimization.max_grad_norm, "max_grad_norm");
      } else if (key == "monitor_config" || key == "comms_config") {
        require_off(key, value);
      } else if (key == "train_batch_size") {
        refuse(key, value,
               "set it to \"auto\": per_device_train_batch_size, gradient_accumulation_steps and "
               "the number of processes decide");
      } else {
        refuse(key, value);
      }
    }
    return problems_;
  }

 private:
  static bool asks_nothing(const json& value) {
    return value.is_null() || value == false || value == "auto" || value == "none" ||
           (value.is_structured() && value.empty());
  }

  static json enabled(const json& section) {
    return section.is_object() ? section.value("enabled", json()) : section;
  }

  void say(const std::string& problem) {
    problems_.push_back(fmt::format("{}: {}", config_.memory.deepspeed, problem));
  }

  void refuse(const std::string& key, const json& value, const std::string& remedy = "remove it") {
    say(fmt::format("{}: {} is not supported; {}", key, value.dump(), remedy));
  }

  template <class T>
  void require_equal(const std::string& key, const json& value, const T& own,
                     const std::string& own_key) {
    if (value.is_null() || value == "auto" || value == json(own)) return;
    say(fmt::format("{} is {}, but {} is {}; make them equal, or set the former to \"auto\"", key,
                    value.dump(), own_key, json(own).dump()));
  }

  /// Monitors, which have a switch each, and printed lines of collectives.
  void require_off(const std::string& section, const json& values) {
    if (!values.is_object()) return refuse(section, values);
    for (const auto& [key, value] : values.items()) {
      const bool is_label = section == "monitor_config" && (key == "enabled" || key == "tag");
      if (is_label || asks_nothing(value) || (value.is_object() && asks_nothing(enabled(value)))) {
        continue;
      }
      refuse(fmt::format("{}.{}", section, key), value, "remove it; report_to names services");
    }
  }

  /// Other keys set dtypes of gradients and optimizer states.
  void require_known_of_bf16(const std::string& section, const json& values) {
    if (!values.is_object()) return;
    for (const auto& [key, value] : values.items()) {
      if (key == "enabled" || kBf16Tuning.contains(key) || asks_nothing(value)) continue;
      refuse(fmt::format("{}.{}", section, key), value);
    }
  }

  void read_zero(const json& zero) {
    if (!zero.is_object()) return refuse("zero_optimization", zero);
    int64_t stage = 0;
    for (const auto& [key, value] : zero.items()) {
      const std::string path = "zero_optimization." + key;
      if (key == "stage") {
        if (!value.is_number_integer() || value < 0 || value > 3) {
          refuse(path, value, "give 0, 1, 2 or 3");
        } else {
          stage = value.get<int64_t>();
        }
      } else if (key == "offload_optimizer") {
        read_offload(path, value, config_.memory.offload_optimizer, "offload_optimizer");
      } else if (key == "offload_param") {
        read_offload(path, value, config_.memory.offload_params, "offload_params");
      } else if (key == "cpu_offload" && value == true) {
        config_.memory.offload_optimizer = true;
      } else if (key == "mics_shard_size") {
        if (asks_nothing(value) || value == -1) continue;
        const std::optional<int64_t> size = as_whole(value);
        if (!size || *size < 1 || *size > kMostIndexed) {
          refuse(path, value, "give a number of processes");
        } else {
          take(path, *size, config_.memory.zero_shard_size, "zero_shard_size");
        }
      } else if (key == "zero_hpz_partition_size" && value == 1) {
        continue;
      } else if (!kZeroTuning.contains(key) && !asks_nothing(value)) {
        refuse(path, value);
      }
    }
    if (config_.memory.offload_params && stage < 3) {
      say(fmt::format("zero_optimization.offload_param wants stage 3; the stage is {}", stage));
    }
    take("zero_optimization.stage", stage, config_.memory.zero_stage, "zero_stage");
  }

  void read_offload(const std::string& path, const json& section, bool& own, const char* own_key) {
    if (asks_nothing(section)) return;
    if (!section.is_object()) return refuse(path, section);
    for (const auto& [key, value] : section.items()) {
      if (key == "device") {
        if (value == "cpu") {
          own = true;
        } else if (value != "none") {
          refuse(path + ".device", value, "give \"cpu\" or \"none\"");
        } else if (own) {
          say(fmt::format("{}.device is \"none\", but {} is true; keep one", path, own_key));
        }
      } else if (!kOffloadTuning.contains(key) && !asks_nothing(value)) {
        refuse(path + "." + key, value);
      }
    }
  }

  void take(const std::string& key, int64_t value, std::optional<int64_t>& own,
            const char* own_key) {
    if (own && *own != value) {
      say(fmt::format("{} is {}, but {} is {}; keep one", key, value, own_key, *own));
    }
    own = value;
  }

  Config& config_;
  const json& file_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> apply_deepspeed(Config& config) {
  if (config.memory.deepspeed.empty()) return {};
  const json file = read_json_file(config.memory.deepspeed, "deepspeed file");
  if (!file.is_object()) return {config.memory.deepspeed + ": wanted is a JSON object"};
  return Reader(config, file).read();
}

}  // namespace longspan
