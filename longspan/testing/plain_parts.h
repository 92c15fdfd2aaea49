// Layers whose parts are the plain versions of other layers' parts, run by layers/plain_layer.h:
// in the same layer code, autograd computes the gradients that the original parts compute by their
// own backwards.
#pragma once

#include "longspan/layers/layer.h"

namespace longspan::testing {

/// The result shares the parameters.
Layer with_plain_mixer(Layer layer);
Layer with_plain_feed_forward(Layer layer);
inline Layer with_plain_parts(const Layer& layer) {
  return with_plain_mixer(with_plain_feed_forward(layer));
}

}  // namespace longspan::testing
