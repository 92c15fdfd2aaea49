// Qwen3 mixtures of experts (arXiv 2505.09388): Qwen3, with experts in the place of the MLP in all
// layers, or in those that its config names.
#include "longspan/input/numbers.h"
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"

namespace longspan {
namespace {

constexpr int64_t kDefaultWindow = 4096;

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  config.qk_norm = true;
  config.qkv_bias = config.output_bias = keys.get<bool>("attention_bias", false);
  // Of all layers, as transformers has it for this family.
  if (keys.get<bool>("use_sliding_window", false)) {
    config.window =
        keys.has("sliding_window") ? keys.whole("sliding_window", 1, kMostIndexed) : kDefaultWindow;
  }
  read_qwen_experts(keys, {.normalises = false, .may_be_dense = true, .has_gated_shared = false},
                    config);
}

}  // namespace

extern const Family kQwen3Moe{
    "qwen3_moe",  "Qwen3 30B-A3B, 235B-A22B", "Qwen3MoeForCausalLM", false, 1e-6, 32768,
    read_own_keys};

}  // namespace longspan
