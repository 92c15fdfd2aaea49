// Qwen3.5, dense, its text part: three layers of GatedDeltaNet (arXiv 2412.06464) to one of softmax
// attention, whose output has a gate and of whose heads a quarter is rotated.
#include <fmt/format.h>

#include <string>

#include "longspan/models/family.h"
#include "longspan/models/hybrid_layers.h"

namespace longspan {
namespace {

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  // transformers' defaults for this family; null is another.
  if (!keys.json().contains("head_dim")) config.head_dim = 256;
  if (!keys.json().contains("num_key_value_heads")) config.num_kv_heads = 4;
  config.qk_norm = config.output_gate = true;
  config.norm_kind = NormKind::kOnePlusWeight;
  config.qkv_bias = config.output_bias = keys.get<bool>("attention_bias", false);
  if (!keys.get<bool>("attn_output_gate", true)) {
    keys.fail("attn_output_gate: false: the attention of this family always has a gate");
  }
  read_hybrid_layers(keys, config);
}

}  // namespace

extern const Family kQwen3_5{"qwen3_5_text",
                             "Qwen3.5 dense, text",
                             "Qwen3_5ForCausalLM",
                             false,
                             1e-6,
                             32768,
                             read_own_keys,
                             /*default_partial_rotary_factor=*/0.25};

}  // namespace longspan
