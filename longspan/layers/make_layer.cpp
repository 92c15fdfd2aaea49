#include "longspan/layers/make_layer.h"

#include <variant>

// The register: what makes a layer of its spec. A kind that the variants of spec/model_spec.h name
// and that is missing here does not compile.
#include "longspan/layers/gated_delta_net.h"
#include "longspan/layers/gated_mlp.h"
#include "longspan/layers/mixture_of_experts.h"
#include "longspan/layers/self_attention.h"

namespace longspan {

Layer make_layer(const ModelSpec& model, int64_t layer, const TensorsByName& parameters,
                 double lora_scale) {
  const LayerSpec& spec = model.layer(layer);
  const LayerWeights weights(parameters, layer, lora_scale);
  return {weights.norm("input_layernorm"),
          weights.norm("post_attention_layernorm"),
          model.norm_kind,
          model.norm_eps,
          std::visit([&](const auto& mixer) { return make_token_mixer(mixer, model, weights); },
                     spec.mixer),
          std::visit([&](const auto& part) { return make_feed_forward(part, model, weights); },
                     spec.feed_forward)};
}

}  // namespace longspan
