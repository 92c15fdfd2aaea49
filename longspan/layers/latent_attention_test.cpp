// Latent attention against its plain version, and what it costs.
#include "longspan/layers/latent_attention.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <optional>

#include "longspan/attention/block_kernel.h"
#include "longspan/layers/make_layer.h"
#include "longspan/layers/mixer_pass.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/layer_check.h"

namespace longspan {
namespace {

const GatedMlpSpec kMlp{.intermediate_size = 20};

LatentAttentionSpec latent(int64_t num_heads, std::optional<int64_t> query_rank) {
  LatentAttentionSpec spec;
  spec.query_rank = query_rank;
  spec.kv_rank = 9;
  spec.rope_dim = 4;
  spec.rotary.pairs = RotaryPairs::kNeighbours;
  spec.attention = {.num_heads = num_heads,
                    .num_kv_heads = num_heads,
                    .key_dim = 6 + spec.rope_dim,
                    .value_dim = 5,
                    .scale = 0.3};
  spec.attention.latent_dim = spec.latent_dim();
  return spec;
}

TEST_CASE("latent attention: output and gradients are those of its plain version") {
  LatentAttentionSpec with_bias = latent(2, 7);
  with_bias.bias = true;
  with_bias.rotary.pairs = RotaryPairs::kHalves;
  with_bias.rotary.theta = 100.0;
  with_bias.norm_eps = 1e-2;
  for (const LatentAttentionSpec& spec : {latent(3, std::nullopt), latent(1, 8), with_bias}) {
    CAPTURE(spec.attention.num_heads);
    for (const NormKind kind : {NormKind::kWeight, NormKind::kOnePlusWeight}) {
      testing::check_layer(
          {.layer = {spec, kMlp}, .all_rows = kind == NormKind::kWeight, .norm_kind = kind});
    }
  }
}

TEST_CASE("latent attention: projections in several chunks of rows") {
  // Chunks have at least 1024 rows.
  testing::check_layer({.layer = {latent(2, 7), kMlp}, .document_lengths = {700, 450}});
}

TEST_CASE("latent attention: saves what its cost says") {
  constexpr int64_t kTokens = 64, kHidden = 24;
  for (const std::optional<int64_t> query_rank : {std::optional<int64_t>(), {12}}) {
    CAPTURE(query_rank.has_value());
    LatentAttentionSpec spec = latent(4, query_rank);
    // Head dims for which the kernel makes no padded copies.
    spec.attention.key_dim = spec.attention.value_dim = 16;
    ModelSpec model;
    model.hidden_size = kHidden;
    model.num_layers = 1;
    model.pattern = {{spec, kMlp}};
    TensorsByName leaves;
    for (const ParameterSpec& parameter : layer_parameters(model, 0)) {
      leaves[parameter.name] = at::randn(parameter.shape).requires_grad_(true);
    }
    const Layer layer = make_layer(model, 0, leaves, /*lora_scale=*/0);
    const auto attention = make_local(cpu_block_kernel());
    const RowContext row{attention.get(),
                         Packing::single(kTokens),
                         {rotary_table(rotary_frequencies(*rotary_in(spec)),
                                       at::arange(kTokens, at::kLong), at::kFloat)},
                         at::kFloat};
    const at::Tensor h_TD = at::randn({kTokens, kHidden}).requires_grad_(true);
    const AllocationCounter counter(AllocationCounter::Of::kThisThread);
    const at::Tensor out_TD = mixer_sublayer(h_TD, layer, row, /*rows_L=*/{});
    const TokenMixerCost cost = cost_of(spec, kHidden);
    const int64_t numbers =
        cost.queries + cost.keys + cost.values + cost.output + cost.saved_for_norms;
    const int64_t of_norm = 4 * kTokens, output = 4 * kTokens * kHidden;
    CHECK(counter.live_bytes() == kTokens * (4 * numbers + cost.state_bytes) + of_norm + output);
  }
}

}  // namespace
}  // namespace longspan
