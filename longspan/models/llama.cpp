// Llama 2, 3, 3.1, 3.2, 3.3 (arXiv 2307.09288, 2407.21783): no biases unless the file says so.
#include "longspan/models/family.h"

namespace longspan {
namespace {

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  config.qkv_bias = config.output_bias = keys.get<bool>("attention_bias", false);
  config.mlp_bias = keys.get<bool>("mlp_bias", false);
}

}  // namespace

extern const Family kLlama{"llama", "Llama 2, 3, 3.x", "LlamaForCausalLM", false, 1e-6,
                           2048,    read_own_keys};

}  // namespace longspan
