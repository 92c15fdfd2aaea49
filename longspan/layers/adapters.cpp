#include "longspan/layers/adapters.h"

#include <algorithm>
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
  for (Linear* linear : open.linears()) {
    linear->lora_a = linear->lora_b = linear->magnitude = at::Tensor();
  }
  Layer without = std::move(open).in_place_of(layer);
  without.has_magnitudes = false;
  return without;
}

bool has_magnitudes(const Layer& layer) {
  return std::ranges::any_of(OpenLayer(layer).linears(),
                             [](const Linear* linear) { return linear->magnitude.defined(); });
}

namespace {

void set_dropout(const OpenLayer& open, const Dropout& dropout, const at::Tensor& rows_L) {
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
}

}  // namespace

Layer for_pass(const Layer& layer, const std::optional<Dropout>& dropout,
               const at::Tensor& rows_L) {
  if (!dropout && !layer.has_magnitudes) return layer;
  OpenLayer open(layer);
  if (dropout) set_dropout(open, *dropout, rows_L);
  if (layer.has_magnitudes) {
    for (Linear* linear : open.linears()) *linear = linear->with_lengths();
  }
  return std::move(open).in_place_of(layer);
}

}  // namespace longspan
