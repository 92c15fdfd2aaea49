// Qwen3-Next: Qwen3.5's alternation of GatedDeltaNet and softmax attention, with other projections
// before the recurrence, and experts beside a shared one in the place of the MLP.
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/hybrid_layers.h"

namespace longspan {
namespace {

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  read_hybrid_layers(
      keys, {.default_kv_heads = 2, .projections = GatedDeltaNetSpec::Projections::kByKeyHeads},
      config);
  read_qwen_experts(keys, {.normalises = true, .may_be_dense = true, .has_gated_shared = true},
                    config);
}

}  // namespace

extern const Family kQwen3Next{.model_type = "qwen3_next",
                               .models = "Qwen3-Next-80B-A3B",
                               .architecture = "Qwen3NextForCausalLM",
                               .default_tie_word_embeddings = false,
                               .default_rms_norm_eps = 1e-6,
                               .default_max_position_embeddings = 32768,
                               .read_own_keys = read_own_keys,
                               .default_partial_rotary_factor = 0.25};

}  // namespace longspan
