// Compares self-attention with its plain version, and checks its cost.
#include "longspan/layers/self_attention.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <utility>

#include "longspan/attention/block_kernel.h"
#include "longspan/layers/make_layer.h"
#include "longspan/layers/mixer_pass.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/layer_check.h"

namespace longspan {
namespace {

const GatedMlpSpec kMlp{.intermediate_size = 20};

SelfAttentionSpec rotated(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  SelfAttentionSpec spec;
  spec.attention = plain_attention(num_heads, num_kv_heads, head_dim);
  spec.rotary = RotarySpec{};
  return spec;
}

TEST_CASE("self-attention: output and gradients are those of its plain version") {
  SelfAttentionSpec with_all = rotated(4, 2, 6);
  with_all.attention.value_dim = 10;
  with_all.attention.scale = 0.21;
  with_all.rotary->theta = 100.0;
  with_all.rotary->scaling.type = RopeScaling::Type::kLinear;
  with_all.rotary->scaling.factor = 3.0;
  with_all.qk_norm = with_all.qkv_bias = with_all.output_bias = true;
  SelfAttentionSpec unrotated = rotated(3, 1, 8);
  unrotated.rotary.reset();
  unrotated.qk_norm = true;
  SelfAttentionSpec neighbours = rotated(4, 2, 10);
  neighbours.rotary->pairs = RotaryPairs::kNeighbours;
  neighbours.rotary->dim = 6;
  for (const SelfAttentionSpec& spec : {rotated(6, 2, 4), with_all, unrotated, neighbours}) {
    CAPTURE(spec.attention.num_heads);
    for (const bool all_rows : {true, false}) {
      CAPTURE(all_rows);
      testing::check_layer({.layer = {spec, kMlp}, .all_rows = all_rows});
    }
  }
}

TEST_CASE("self-attention: windows, sinks and softcaps are those of its plain version") {
  SelfAttentionSpec window = rotated(4, 2, 6), sinks = rotated(4, 2, 6), all = rotated(4, 1, 6);
  window.attention.window = 5;
  sinks.attention.has_sinks = true;
  all.attention.window = 3;
  all.attention.softcap = 0.7;
  all.attention.has_sinks = true;
  for (const SelfAttentionSpec& spec : {window, sinks, all}) {
    for (const bool all_rows : {true, false}) {
      CAPTURE(all_rows);
      testing::check_layer({.layer = {spec, kMlp}, .all_rows = all_rows});
    }
  }
}

/// With a gate; 6 of 10 numbers of a head are rotated.
SelfAttentionSpec gated_and_partly_rotated(bool qk_norm) {
  SelfAttentionSpec spec = rotated(4, 2, 10);
  spec.attention.value_dim = 6;
  spec.rotary->dim = 6;
  spec.output_gate = spec.qkv_bias = true;
  spec.qk_norm = qk_norm;
  return spec;
}

TEST_CASE("self-attention: output gate, part of a head rotated, norms of both kinds") {
  for (const bool qk_norm : {false, true}) {
    CAPTURE(qk_norm);
    for (const NormKind kind : {NormKind::kWeight, NormKind::kOnePlusWeight}) {
      CAPTURE(static_cast<int>(kind));
      testing::check_layer({.layer = {gated_and_partly_rotated(qk_norm), kMlp},
                            .all_rows = kind == NormKind::kWeight,
                            .norm_kind = kind});
    }
  }
}

TEST_CASE("self-attention: projections in several chunks of rows") {
  SelfAttentionSpec spec = rotated(2, 1, 4);
  spec.qk_norm = true;
  // Chunks have at least 1024 rows.
  testing::check_layer({.layer = {spec, kMlp}, .document_lengths = {700, 450}, .is_long = true});
  testing::check_layer(
      {.layer = {gated_and_partly_rotated(/*qk_norm=*/true), kMlp}, .document_lengths = {1150}});
}

TEST_CASE("self-attention: saves what its cost says") {
  constexpr int64_t kTokens = 64, kHidden = 24;
  for (const auto& [qk_norm, output_gate] :
       {std::pair{false, false}, {true, false}, {true, true}}) {
    CAPTURE(qk_norm);
    CAPTURE(output_gate);
    SelfAttentionSpec spec = rotated(4, 2, 16);
    spec.qk_norm = qk_norm;
    spec.output_gate = output_gate;
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
                         {rotary_table(rotary_frequencies({RotarySpec{}, 16}),
                                       at::arange(kTokens, at::kLong), at::kFloat)},
                         at::kFloat};
    const at::Tensor h_TD = at::randn({kTokens, kHidden}).requires_grad_(true);
    const AllocationCounter counter(AllocationCounter::Of::kThisThread);
    const at::Tensor out_TD = mixer_sublayer(h_TD, layer, row, /*rows_L=*/{});
    const TokenMixerCost cost = cost_of(spec, kHidden);
    const int64_t numbers = cost.queries + cost.keys + cost.values + cost.output +
                            cost.saved_for_norms + cost.saved_for_gate;
    // Norms of heads also save one number for each head, which the memory account leaves out.
    const int64_t of_norms = qk_norm ? 4 * kTokens * (4 + 2) : 0;
    const int64_t of_norm = 4 * kTokens, output = 4 * kTokens * kHidden;
    CHECK(counter.live_bytes() ==
          kTokens * (4 * numbers + cost.state_bytes) + of_norms + of_norm + output);
  }
}

}  // namespace
}  // namespace longspan
