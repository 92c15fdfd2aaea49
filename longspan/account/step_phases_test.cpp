#include "longspan/account/step_phases.h"

#include <doctest/doctest.h>

#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

/// 1024 tokens, five layers with wide MLPs.
MemoryFacts facts_of_rows() {
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 16);
  MemoryFacts facts;
  facts.hidden_size = 64;
  facts.layers = {{cost_of(LayerSpec{mixer, GatedMlpSpec{1000}}, 64), 5}};
  facts.angle_numbers = 16;
  facts.num_tokens = facts.num_labels = 1024;
  return facts;
}

TEST_CASE("peak phase: a head's gradient in bf16 is made once its last logits are gone") {
  MemoryFacts facts = facts_of_rows();
  facts.vocab_size = 100'000;
  facts.residual_bytes = facts.compute_bytes = 2;
  facts.sums_head_apart = true;
  facts.units.layers.assign(5, {});
  const int64_t logits = 167 * int64_t{100'000} * 6, head = 2 * int64_t{64} * 100'000;
  const auto device = [&](int64_t gradient, bool accumulates) {
    facts.accumulates = accumulates;
    facts.units.head.gradients = facts.trained_parameter_bytes = gradient;
    return account_of(facts).device;
  };
  // In a step of several rows the gradient exists from the row before.
  CHECK(device(head, true) - device(head, false) == head);
  // A gradient larger than the logits takes their place.
  CHECK(device(logits + 777, false) - device(head, false) == 777);
  facts.num_labels = 100;  // one chunk, whose product is the gradient
  CHECK(device(head, true) == device(head, false));
}

}  // namespace
}  // namespace longspan
