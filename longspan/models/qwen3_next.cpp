// Qwen3-Next: alternates GatedDeltaNet and softmax attention like Qwen3.5, with other projections
// before the recurrence, and experts with a shared expert in place of the MLP.
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/hybrid_layers.h"
#include "longspan/models/layer_keys.h"

namespace longspan {
namespace {

void read_qwen3_next_layers(const JsonObject& keys, ModelConfig& config) {
  read_hybrid_layers(
      keys, {.default_kv_heads = 2, .projections = GatedDeltaNetSpec::Projections::kByKeyHeads},
      read_gated_mlp(keys), config);
  config.router_aux_loss_coef = read_auxiliary_loss(keys);
  config.spec.pattern = with_qwen_experts(
      keys, {.normalises = true, .has_gated_shared = true, .adapters = MlpAdapters::kExperts},
      config.spec.pattern, config.spec);
}

}  // namespace

extern const Family kQwen3Next{.model_type = "qwen3_next",
                               .models = "Qwen3-Next-80B-A3B",
                               .architecture = "Qwen3NextForCausalLM",
                               .default_tie_word_embeddings = false,
                               .default_rms_norm_eps = 1e-6,
                               .default_max_position_embeddings = 32768,
                               .read_layers = read_qwen3_next_layers};

}  // namespace longspan
