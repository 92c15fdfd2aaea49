// The moments of a training step at which the device works with much memory beside what is saved,
// and the fullest of them. No torch.
#pragma once

#include <vector>

#include "longspan/plan/memory_model.h"

namespace longspan {

/// What a moment works with beside saved tensors: bytes for each of this rank's tokens, and bytes
/// that do not depend on the row.
struct Moment {
  const char* name;
  double per_token, fixed;
  bool in_forward = false;  ///< gradients of the row are not there yet
  bool has_kept = true;     ///< what the layer's feed-forward keeps is still there
  /// Of these bytes, those that are gone when the unit's gradient is made; 0: it is there before.
  double before_gradient = 0.0;
};

/// Of all, as if everything that is saved and kept were there at each.
Moment fullest_moment(const MemoryFacts& facts);

/// The head's, whose forward and backward are one.
Moment head_moment(const MemoryFacts& facts);
/// Of one layer of a kind (its place in facts.layers).
struct LayerPlace {
  bool keeps = false;    ///< checkpointing keeps what its feed-forward saves
  bool is_last = false;  ///< of the last layer's rows those with labels are picked
};
std::vector<Moment> layer_moments(const MemoryFacts& facts, size_t kind, const LayerPlace& place);
/// The embedding's backward.
Moment embedding_moment(const MemoryFacts& facts);

/// Bytes a token of one layer of a kind: what it saves for its backward, and what its feed-forward
/// keeps beside that, where it does. What its feed-forward has chosen stays on the device in any
/// case. `last`: the last layer, of whose feed-forward only rows with labels are wanted.
double saved_by_layer(const MemoryFacts& facts, size_t kind, bool last);
double kept_by_layer(const MemoryFacts& facts, size_t kind, bool last);
double chosen_by_layer(const MemoryFacts& facts, size_t kind, bool last);

}  // namespace longspan
