// States that recurrent layers carry from one row to the next, for documents that continue earlier
// tokens. P: tokens of a convolution's window, J: channels, N, K, V: as in
// kernels/gated_delta_rule.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// The states of one document: the convolution's last inputs, and the recurrence's state. Undefined
/// tensors: the document begins in this row.
struct CarriedStates {
  at::Tensor window_PJ, state_NKV;
};

/// Carried states of all recurrent layers, for generation: a decoder without gradients computes the
/// next tokens of each document in a new row.
class RecurrentMemory {
 public:
  virtual ~RecurrentMemory() = default;
  /// Moves to the next layer with a recurrence. Each recurrent layer calls begin_layer(), in the
  /// order of the layers.
  virtual void begin_layer() = 0;
  /// Returns the current layer's states of a document. The layer continues from these states, and
  /// overwrites them with the states after the document's last token.
  virtual CarriedStates& of_document(int64_t document) = 0;
};

}  // namespace longspan
