// The gated MLP against its plain version, and what it costs.
#include "longspan/layers/gated_mlp.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <iterator>

#include "longspan/layers/feed_forward_pass.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/testing/layer_check.h"

namespace longspan {
namespace {

SelfAttentionSpec small_attention() {
  SelfAttentionSpec spec;
  spec.attention = plain_attention(2, 1, 4);
  return spec;
}

TEST_CASE("gated MLP: output and gradients are those of its plain version, in any chunks") {
  const GateActivation activations[] = {Swiglu{}, Geglu{}, ClampedSwiglu{.limit = 0.5}};
  for (size_t activation = 0; activation < std::size(activations); ++activation) {
    for (const bool all_rows : {true, false}) {
      for (const int64_t tiles : {0, 1, 3, 100}) {
        CAPTURE(activation);
        CAPTURE(all_rows);
        CAPTURE(tiles);
        testing::check_layer(
            {.layer = {small_attention(), GatedMlpSpec{.intermediate_size = 36,
                                                       .bias = activation != 1,
                                                       .activation = activations[activation]}},
             .all_rows = all_rows,
             .mlp_tiles = tiles});
      }
    }
  }
}

TEST_CASE("gated MLP: saves what its cost says, and nothing in tiles") {
  constexpr int64_t kTokens = 64, kHidden = 24;
  const GatedMlpSpec spec{.intermediate_size = 40};
  const auto linear = [](int64_t out, int64_t in) {
    Linear layer;
    layer.weight = at::randn({out, in}).requires_grad_(true);
    return layer;
  };
  const GatedMlp::Weights weights{linear(40, kHidden), linear(40, kHidden), linear(kHidden, 40)};
  const Layer layer{{},
                    at::ones({kHidden}),
                    NormKind::kWeight,
                    1e-6,
                    {},
                    std::make_shared<GatedMlp>(spec, weights)};
  const at::Tensor h_TD = at::randn({kTokens, kHidden}).requires_grad_(true);
  for (const int64_t tiles : {0, 4}) {
    CAPTURE(tiles);
    const RowContext row{nullptr, Packing::single(kTokens), {}, at::kFloat, tiles};
    const AllocationCounter counter(AllocationCounter::Of::kThisThread);
    const at::Tensor out_TD = feed_forward_sublayer(h_TD, layer, row);
    const int64_t saved = tiles == 0 ? cost_of(spec, kHidden).saved : 0;
    CHECK(counter.live_bytes() == 4 * kTokens * (saved + kHidden));
  }
}

}  // namespace
}  // namespace longspan
