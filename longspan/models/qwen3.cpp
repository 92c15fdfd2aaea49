// Qwen3 (arXiv 2505.09388), dense: an RMSNorm over each query and key head, no biases by default.
#include "longspan/models/family.h"

namespace longspan {
namespace {

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  // transformers' default for this family; null is another.
  if (!keys.json().contains("head_dim")) config.head_dim = 128;
  config.qk_norm = true;
  config.qkv_bias = config.output_bias = keys.get<bool>("attention_bias", false);
  if (keys.get<bool>("use_sliding_window", false)) {
    keys.fail(
        "use_sliding_window: true is not supported, attention is always full. Set it to false to "
        "train with full attention");
  }
}

}  // namespace

extern const Family kQwen3{"qwen3", "", "Qwen3ForCausalLM", false, 1e-6, 32768, read_own_keys};

}  // namespace longspan
