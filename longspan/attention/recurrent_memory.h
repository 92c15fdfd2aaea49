// What recurrences go on from, where a row's documents go on with earlier tokens.
// P: tokens of a convolution's window, J: channels, N, K, V: as kernels/gated_delta_rule.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Of one document: the last inputs of the convolution, and the state. Undefined where it begins.
struct CarriedStates {
  at::Tensor window_PJ, state_NKV;
};

/// For decoders without gradients that go on where they stopped.
class RecurrentMemory {
 public:
  virtual ~RecurrentMemory() = default;
  /// Called by each layer with a recurrence, in the order of the layers.
  virtual void begin_layer() = 0;
  /// What a document of the row goes on from in that layer; takes what is after its last token.
  virtual CarriedStates& of_document(int64_t document) = 0;
};

}  // namespace longspan
