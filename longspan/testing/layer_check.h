// What every layer must do, as a check for the test of each.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan::testing {

struct LayerCase {
  LayerSpec layer;
  std::vector<int64_t> document_lengths = {9, 1, 14};
  bool all_rows = true;   ///< else about a third of the rows is wanted from the layer
  int64_t mlp_tiles = 0;  ///< RowContext::mlp_tiles
  NormKind norm_kind = NormKind::kWeight;  ///< ModelSpec::norm_kind
  bool is_long = false;                    ///< its plain version takes long, and is computed once
};

/// In fp64: with checkpointing, with its tensors in a store, where it keeps what the feed-forward
/// saves, and without, output, d loss / d h and the gradients of all parameters are those of the
/// plain version by autograd; the output is the same without gradients; frozen parameters get none,
/// and the others what they got before. The same of a layer that is the plain version, in the place
/// of its own steps (plain_parts.h).
void check_layer(const LayerCase& problem);

}  // namespace longspan::testing
