// The phases of a training step with much temporary device memory, and the peak over these phases.
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
  bool has_kept = true;     ///< the kept tensors of the layer's feed-forward still exist
  /// The part of the phase's bytes that is freed before the unit's gradient is allocated; 0 if the
  /// gradient exists before the phase.
  double before_gradient = 0.0;
  bool has_mixed = true;  ///< without saved tensors, the output of the layer's mixer still exists
};

/// Returns the phase with the peak memory, under the assumption that all saved and kept tensors
/// exist in each phase.
StepPhase peak_phase(const MemoryFacts& facts);

/// Returns the phase of the head, whose forward and backward are one phase. With a teacher, the
/// logits of both models.
StepPhase head_phase(const MemoryFacts& facts);
/// Properties of one layer of a kind.
struct LayerPlace {
  bool keeps = false;    ///< checkpointing keeps the saved tensors of the feed-forward
  bool is_last = false;  ///< the last layer computes only the rows with labels
};
std::vector<StepPhase> layer_phases(const MemoryFacts& facts, size_t kind, const LayerPlace& place);
/// Returns the phase of the embedding's backward.
StepPhase embedding_phase(const MemoryFacts& facts);

/// Return bytes per token of one layer. saved_by_layer: tensors saved for the backward.
/// kept_by_layer: tensors of the feed-forward that checkpointing keeps in addition
/// (LayerPlace::keeps). chosen_by_layer: the router's choices of experts, which always stay on the
/// device. `kind`: index in facts.layers. `last`: true for the model's last layer, whose
/// feed-forward computes only tokens with labels.
double saved_by_layer(const MemoryFacts& facts, size_t kind, bool last);
double kept_by_layer(const MemoryFacts& facts, size_t kind, bool last);
double chosen_by_layer(const MemoryFacts& facts, size_t kind, bool last);

}  // namespace longspan
