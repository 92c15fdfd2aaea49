// The states from which recurrences continue, where a row's documents continue earlier tokens.
// P: tokens of a convolution's window, J: channels, N, K, V: as kernels/gated_delta_rule.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Of one document: the last inputs of the convolution, and the state. Undefined where it begins.
struct CarriedStates {
  at::Tensor window_PJ, state_NKV;
};

/// For generation: a decoder without gradients computes a document's next tokens in another row.
class RecurrentMemory {
 public:
  virtual ~RecurrentMemory() = default;
  /// Called by each layer with a recurrence, in the order of the layers.
  virtual void begin_layer() = 0;
  /// The states from which a document of the row continues in that layer. The layer replaces them
  /// by those after the document's last token.
  virtual CarriedStates& of_document(int64_t document) = 0;
};

}  // namespace longspan
