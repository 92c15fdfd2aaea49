// Replaces the parts of layers by plain versions (layers/plain_layer.h). The layer code stays the
// same. Autograd computes the gradients of plain versions, while the original parts have
// hand-written backwards.
#pragma once

#include "longspan/layers/layer.h"

namespace longspan::testing {

/// Return the layer with a plain mixer or feed-forward. The result shares the layer's parameters.
Layer with_plain_mixer(Layer layer);
Layer with_plain_feed_forward(Layer layer);
inline Layer with_plain_parts(const Layer& layer) {
  return with_plain_mixer(with_plain_feed_forward(layer));
}

}  // namespace longspan::testing
