#include "longspan/layers/make_layer.h"

#include <variant>

// The register: what makes a layer of its spec. A kind that the variants of spec/model_spec.h name
// and that is missing here does not compile.
#include "longspan/layers/gated_delta_net.h"
#include "longspan/layers/gated_mlp.h"
#include "longspan/layers/latent_attention.h"
#include "longspan/layers/mixture_of_experts.h"
#include "longspan/layers/self_attention.h"

namespace longspan {

Layer make_layer(const ModelSpec& model, int64_t layer, const TensorsByName& parameters,
                 double lora_scale, ExpertExchange* exchange) {
  const LayerSpec& spec = model.layer(layer);
  const LayerWeights weights(parameters, layer_parameters(model, layer), layer, lora_scale,
                             exchange);
  const std::vector<const char*> norms = norm_names(spec);
  return {weights.norm(norms[0]),
          weights.norm(norms[1]),
          model.norm_kind,
          model.norm_eps,
          std::visit([&](const auto& mixer) { return make_token_mixer(mixer, model, weights); },
                     spec.mixer),
          std::visit([&](const auto& part) { return make_feed_forward(part, model, weights); },
                     spec.feed_forward),
          norms.size() > 2 ? weights.norm(norms[2]) : at::Tensor(),
          norms.size() > 2 ? weights.norm(norms[3]) : at::Tensor()};
}

}  // namespace longspan
