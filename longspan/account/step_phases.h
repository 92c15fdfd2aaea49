// The phases of a training step in which temporary device memory is large, and the peak over them.
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
  /// The part of these bytes that is freed before the unit's gradient is allocated; 0 if the
  /// gradient is allocated before the phase.
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

/// Bytes per token of one layer of a kind: tensors saved for the backward; tensors of the
/// feed-forward that checkpointing keeps in addition (LayerPlace::keeps); and the routers' choices
/// of experts, which always stay on the device. `last`: the last layer, whose feed-forward computes
/// only the rows with labels.
double saved_by_layer(const MemoryFacts& facts, size_t kind, bool last);
double kept_by_layer(const MemoryFacts& facts, size_t kind, bool last);
double chosen_by_layer(const MemoryFacts& facts, size_t kind, bool last);

}  // namespace longspan
