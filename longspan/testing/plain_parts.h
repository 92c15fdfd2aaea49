// Layers whose parts are the plain versions of others' parts, run by layers/plain_layer.h: what
// these compute by backwards of their own, computed by autograd's in the same frame.
#pragma once

#include "longspan/layers/layer.h"

namespace longspan::testing {

/// Shares the parameters.
Layer with_plain_mixer(Layer layer);
Layer with_plain_feed_forward(Layer layer);
inline Layer with_plain_parts(const Layer& layer) {
  return with_plain_mixer(with_plain_feed_forward(layer));
}

}  // namespace longspan::testing
