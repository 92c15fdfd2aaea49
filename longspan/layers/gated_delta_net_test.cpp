// GatedDeltaNet against its plain version.
#include "longspan/layers/gated_delta_net.h"

#include <doctest/doctest.h>

#include "longspan/testing/layer_check.h"

namespace longspan {
namespace {

const GatedMlpSpec kMlp{.intermediate_size = 20};

GatedDeltaNetSpec small(int64_t num_key_heads, int64_t num_value_heads) {
  return {{.num_key_heads = num_key_heads,
           .num_value_heads = num_value_heads,
           .key_dim = 6,
           .value_dim = 4,
           .conv_width = 4}};
}

TEST_CASE("GatedDeltaNet: output and gradients are those of its plain version") {
  GatedDeltaNetSpec by_key_heads = small(2, 6);
  by_key_heads.projections = GatedDeltaNetSpec::Projections::kByKeyHeads;
  for (const GatedDeltaNetSpec& spec : {small(2, 4), small(3, 3), by_key_heads}) {
    CAPTURE(spec.num_value_heads);
    for (const bool all_rows : {true, false}) {
      CAPTURE(all_rows);
      testing::check_layer({.layer = {spec, kMlp},
                            .document_lengths = {9, 1, 70},
                            .all_rows = all_rows,
                            .norm_kind = NormKind::kOnePlusWeight});
    }
  }
}

TEST_CASE("GatedDeltaNet: projections in several chunks of rows") {
  testing::check_layer(
      {.layer = {small(1, 2), kMlp}, .document_lengths = {700, 450}, .is_long = true});
}

}  // namespace
}  // namespace longspan
