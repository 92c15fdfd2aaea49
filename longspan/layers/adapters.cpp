#include "longspan/layers/adapters.h"

#include <map>
#include <memory>
#include <utility>

namespace longspan {
namespace {

/// A copy of the layer with replaceable linear layers.
struct OpenLayer {
  std::shared_ptr<TokenMixer> mixer;
  std::shared_ptr<FeedForward> feed_forward;

  explicit OpenLayer(const Layer& layer)
      : mixer(layer.mixer->clone()), feed_forward(layer.feed_forward->clone()) {}

  std::vector<Linear*> linears() const {
    std::vector<Linear*> all = mixer->linears_before();
    for (const auto& more : {mixer->linears_after(), feed_forward->linears()}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
  Layer in_place_of(Layer layer) && {
    layer.mixer = std::move(mixer);
    layer.feed_forward = std::move(feed_forward);
    return layer;
  }
};

}  // namespace

Layer without_adapters(const Layer& layer) {
  OpenLayer open(layer);
  for (Linear* linear : open.linears()) linear->lora_a = linear->lora_b = at::Tensor();
  return std::move(open).in_place_of(layer);
}

Layer with_dropout(const Layer& layer, const Dropout& dropout, const at::Tensor& rows_L) {
  OpenLayer open(layer);
  uint64_t number = 0;
  std::map<const c10::TensorImpl*, uint64_t> number_of;  // of each adapter, by its A
  for (Linear* linear : open.linears()) {
    // Layers that share an adapter drop its input once, with the number of the first.
    const uint64_t own =
        number_of.try_emplace(linear->lora_a.unsafeGetTensorImpl(), number).first->second;
    linear->dropout = dropout;
    linear->dropout.seed = mix_seed(dropout.seed, linear->has_adapter() ? own : number);
    number += 1;
  }
  if (rows_L.defined()) {  // the feed-forward gets only these rows
    for (Linear* linear : open.feed_forward->linears()) *linear = linear->for_rows(rows_L);
  }
  return std::move(open).in_place_of(layer);
}

}  // namespace longspan
