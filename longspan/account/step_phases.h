// Phases of a training step with much temporary memory on the device, and the one with the most.
// No torch.
#pragma once

#include <vector>

#include "longspan/account/memory_model.h"

namespace longspan {

/// Temporary memory in a phase of a step, in addition to saved tensors: bytes per token of this
/// rank, and bytes that do not depend on the row.
struct StepPhase {
  const char* name;
  double per_token, fixed;
  bool in_forward = false;  ///< before any gradient of the row exists
  bool has_kept = true;     ///< the tensors that the layer's feed-forward keeps are still there
  /// Part of these bytes that is freed before the unit's gradient is allocated; 0: the gradient
  /// exists before.
  double before_gradient = 0.0;
};

/// Returns the peak over all phases, assuming that all saved and kept tensors exist in each.
StepPhase peak_phase(const MemoryFacts& facts);

/// The head's phase; its forward and backward are one.
StepPhase head_phase(const MemoryFacts& facts);
/// A layer of some kind (an index in facts.layers).
struct LayerPlace {
  bool keeps = false;    ///< checkpointing keeps the tensors that its feed-forward saves
  bool is_last = false;  ///< the last layer computes only the rows with labels
};
std::vector<StepPhase> layer_phases(const MemoryFacts& facts, size_t kind, const LayerPlace& place);
/// The embedding's backward.
StepPhase embedding_phase(const MemoryFacts& facts);

/// Bytes per token of one layer of a kind: saved for the backward, additionally kept for the
/// feed-forward (if it keeps them), and of the experts' choices, which always stay on the device.
/// `last`: the last layer, whose feed-forward computes only the rows with labels.
double saved_by_layer(const MemoryFacts& facts, size_t kind, bool last);
double kept_by_layer(const MemoryFacts& facts, size_t kind, bool last);
double chosen_by_layer(const MemoryFacts& facts, size_t kind, bool last);

}  // namespace longspan
