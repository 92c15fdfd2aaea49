#include "longspan/layers/make_layer.h"

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "longspan/layers/adapters.h"

// The register of layers. A kind in the variants of spec/model_spec.h that is missing here does not
// compile.
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
  const auto norm = [&](std::string_view name) { return weights.norm(std::string(name)); };
  const std::optional<LayerNorms::Behind>& behind = spec.norms.behind;
  Layer made{norm(spec.norms.before_mixer),
             norm(spec.norms.before_feed_forward),
             model.norm_kind,
             model.norm_eps,
             std::visit([&](const auto& mixer) { return make_token_mixer(mixer, model, weights); },
                        spec.mixer),
             std::visit([&](const auto& part) { return make_feed_forward(part, model, weights); },
                        spec.feed_forward),
             behind ? norm(behind->mixer) : at::Tensor(),
             behind ? norm(behind->feed_forward) : at::Tensor()};
  made.has_magnitudes = has_magnitudes(made);
  return made;
}

}  // namespace longspan
