// Compares norms after a layer's sublayers with the plain version.
#include "longspan/layers/output_norm.h"

#include <doctest/doctest.h>

#include "longspan/testing/layer_check.h"

namespace longspan {
namespace {

SelfAttentionSpec small_attention() {
  SelfAttentionSpec spec;
  spec.attention = plain_attention(4, 2, 6);
  spec.rotary = RotarySpec{};
  return spec;
}

TEST_CASE("output norms: output and gradients are those of the plain version, in any chunks") {
  const GatedMlpSpec mlp{.intermediate_size = 20, .activation = Geglu{}};
  for (const NormKind kind : {NormKind::kWeight, NormKind::kOnePlusWeight}) {
    for (const bool all_rows : {true, false}) {
      for (const int64_t tiles : {0, 1, 3}) {
        CAPTURE(all_rows);
        CAPTURE(tiles);
        const LayerNorms norms{.behind = LayerNorms::Behind{"mixer_norm", "feed_forward_norm"}};
        testing::check_layer({.layer = {small_attention(), mlp, norms},
                              .all_rows = all_rows,
                              .mlp_tiles = tiles,
                              .norm_kind = kind});
      }
    }
  }
}

}  // namespace
}  // namespace longspan
