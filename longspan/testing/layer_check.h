// Checks that every layer must pass, for the test of each layer.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan::testing {

struct LayerCase {
  LayerSpec layer;
  std::vector<int64_t> document_lengths = {9, 1, 14};
  bool all_rows = true;   ///< otherwise about a third of the layer's rows is requested
  int64_t mlp_tiles = 0;  ///< RowContext::mlp_tiles
  NormKind norm_kind = NormKind::kWeight;  ///< ModelSpec::norm_kind
  bool is_long = false;                    ///< the plain version is slow, so it is computed once
};

/// Compares a layer in fp64 to its plain version by autograd: the output, d loss / d h and the
/// gradients of all parameters. Runs the layer with checkpointing, with its tensors in a store,
/// with the feed-forward's tensors kept, and without checkpointing. Also checks that the output is
/// the same without gradients. Also checks with some frozen parameters: frozen parameters get no
/// gradients, and the gradients of the other parameters are unchanged. Repeats all checks for a
/// layer made of plain parts (plain_parts.h).
void check_layer(const LayerCase& problem);

}  // namespace longspan::testing
