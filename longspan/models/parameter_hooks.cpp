#include "longspan/models/parameter_hooks.h"

namespace longspan {

int head_unit(const ModelConfig& config) {
  return config.tie_word_embeddings ? kEmbeddingUnit : static_cast<int>(config.num_layers) + 1;
}

int unit_of(const std::string& parameter_name, const ModelConfig& config) {
  constexpr std::string_view kLayers = "model.layers.";
  if (parameter_name.starts_with(kLayers)) {
    return 1 + std::stoi(parameter_name.substr(kLayers.size()));
  }
  if (parameter_name == "model.embed_tokens.weight") return kEmbeddingUnit;
  if (parameter_name == "lm_head.weight") return head_unit(config);
  return kAlwaysThere;
}

}  // namespace longspan
