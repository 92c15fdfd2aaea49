// Qwen2, Qwen2.5 (arXiv 2407.10671): biases on the query, key and value projections only.
#include "longspan/models/family.h"

namespace longspan {
namespace {

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  config.qkv_bias = true;
  if (keys.get<bool>("use_sliding_window", false)) {
    keys.fail(
        "use_sliding_window: true is not supported, attention is always full. Set it to false to "
        "train with full attention");
  }
}

}  // namespace

extern const Family kQwen2{"qwen2", "Qwen2, Qwen2.5", "Qwen2ForCausalLM", false, 1e-6,
                           32768,   read_own_keys};

}  // namespace longspan
