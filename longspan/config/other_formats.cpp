#include "longspan/config/other_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <string_view>

namespace longspan {

namespace {

struct Format {
  std::string_view name;
  // Keys that this program does not have. `least` of them identify the format.
  std::vector<std::string_view> keys;
  size_t least;
  std::string_view remedy;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"a configuration of accelerate's",
       {"compute_environment", "distributed_type", "num_machines", "num_processes", "machine_rank",
        "rdzv_backend", "fsdp_config"},
       3,
       "`longspan train` takes the training's own YAML. nproc_per_node is the number of processes,"
       " and zero_stage shards the states"},
      {"a DeepSpeed configuration",
       {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size",
        "gradient_clipping", "zero_allow_untested_optimizer"},
       2,
       "Name it in the training's YAML: deepspeed: FILE"},
      {"a configuration of axolotl's",
       {"base_model", "datasets", "sequence_len", "micro_batch_size", "sample_packing",
        "val_set_size", "num_epochs"},
       2,
       "Write it with LLaMA-Factory's keys: model_name_or_path, dataset, cutoff_len, "
       "per_device_train_batch_size, packing, val_size, num_train_epochs"},
      {"a model's config.json",
       {"architectures", "hidden_size", "num_hidden_layers", "num_attention_heads"},
       2,
       "Name its folder in the training's YAML: model_name_or_path: FOLDER"},
  };
  return all;
}

constexpr std::string_view kMegatron[] = {"tensor_model_parallel_size",
                                          "pipeline_model_parallel_size",
                                          "virtual_pipeline_model_parallel_size",
                                          "expert_model_parallel_size",
                                          "context_parallel_size",
                                          "use_distributed_optimizer",
                                          "overlap_param_gather",
                                          "overlap_grad_reduce",
                                          "bias_activation_fusion",
                                          "apply_rope_fusion",
                                          "masked_softmax_fusion",
                                          "cross_entropy_loss_fusion",
                                          "moe_grouped_gemm",
                                          "moe_token_dispatcher_type",
                                          "recompute_granularity",
                                          "recompute_method",
                                          "recompute_num_layers",
                                          "use_packed_sequences",
                                          "megatron_pretrained_checkpoint",
                                          "export_hf_on_finish",
                                          "use_mca"};

}  // namespace

std::string other_format(const std::vector<std::string>& keys) {
  const auto found = [&](auto&& is_theirs) {
    std::vector<std::string> theirs;
    std::ranges::copy_if(keys, std::back_inserter(theirs), is_theirs);
    return theirs;
  };
  for (const Format& format : formats()) {
    const std::vector<std::string> theirs = found([&](const std::string& key) {
      return std::ranges::find(format.keys, key) != format.keys.end();
    });
    if (theirs.size() < format.least) continue;
    return fmt::format("this is {} ({}), which is another format. {}", format.name,
                       fmt::join(theirs, ", "), format.remedy);
  }
  const std::vector<std::string> megatron = found([](const std::string& key) {
    return std::ranges::find(kMegatron, key) != std::end(kMegatron);
  });
  if (megatron.empty()) return {};
  return fmt::format(
      "this is a configuration for LLaMA-Factory's Megatron trainer ({}), which is another format. "
      "Remove these keys: here zero_stage divides the model among the processes, and "
      "sequence_parallel_size each row",
      fmt::join(megatron, ", "));
}

std::string line_with_equals(const std::string& yaml) {
  static const std::regex line(R"(^\s*([A-Za-z_][A-Za-z_0-9]*)\s*=\s*(.*?)\s*$)");
  int64_t number = 0;
  for (size_t begin = 0; begin < yaml.size();) {
    const size_t end = std::min(yaml.find('\n', begin), yaml.size());
    const std::string text = yaml.substr(begin, end - begin);
    ++number;
    if (std::smatch match; text.size() < 1000 && std::regex_match(text, match, line)) {
      return fmt::format("line {}: `{}` is no `key: value`; write `{}: {}`", number, match.str(0),
                         match.str(1), match.str(2));
    }
    begin = end + 1;
  }
  return {};
}

}  // namespace longspan
