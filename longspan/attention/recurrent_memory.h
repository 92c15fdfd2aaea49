// Carried states of recurrences, where a row's documents continue earlier tokens. P: tokens of a
// convolution's window, J: channels, N, K, V: as in kernels/gated_delta_rule.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// The states of one document: the convolution's last inputs, and the recurrence's state. Undefined
/// where the document begins.
struct CarriedStates {
  at::Tensor window_PJ, state_NKV;
};

/// Memory of recurrences for generation: a decoder without gradients computes a document's next
/// tokens in another row.
class RecurrentMemory {
 public:
  virtual ~RecurrentMemory() = default;
  /// Moves to the next layer with a recurrence. Each such layer calls it, in the order of the
  /// layers.
  virtual void begin_layer() = 0;
  /// The current layer's states of a document. The layer continues from them, and replaces them by
  /// the states after the document's last token.
  virtual CarriedStates& of_document(int64_t document) = 0;
};

}  // namespace longspan
