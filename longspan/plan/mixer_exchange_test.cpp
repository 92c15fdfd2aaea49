#include "longspan/plan/mixer_exchange.h"

#include <doctest/doctest.h>

#include "longspan/plan/recurrent_volume.h"
#include "longspan/registers/method.h"

namespace longspan {
namespace {

constexpr int64_t kElementBytes = 4;

TEST_CASE("mixer exchange: a gate wants the values of the output, however often they are known") {
  const ParallelPlan plan = make_parallel_plan(2, 2, method_named("ulysses"), 4, 4);
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 4, 8);
  const auto sent_back = [&](bool output_is_known) {
    return mixer_volume(plan, mixer, Packing::single(32), kElementBytes, /*checkpointing=*/true,
                        output_is_known)
        .backward;
  };
  CHECK(sent_back(true) < sent_back(false));
  mixer.output_gate = true;
  CHECK(sent_back(true) == sent_back(false));
  CHECK(sent_back(true) > 0);
}

TEST_CASE("mixer exchange: of a recurrence, and of an attention, what their formulas say") {
  const ParallelPlan plan = make_parallel_plan(2, 2, method_named("ulysses"), 4, 4);
  const Packing row = Packing::single(32);
  const GatedDeltaNetSpec net{
      {.num_key_heads = 2, .num_value_heads = 4, .key_dim = 16, .value_dim = 8, .conv_width = 4}};
  const AttentionVolume sent =
      recurrent_volume(plan, row, *recurrence_in(net), kElementBytes, /*checkpointing=*/true);
  const AttentionMemory held = recurrent_memory(plan, row, *recurrence_in(net), kElementBytes);
  CHECK(sent.forward > 0);
  CHECK(held.forward > 0);
  const AttentionVolume volume = mixer_volume(plan, net, row, kElementBytes, true, true);
  CHECK(volume.forward == sent.forward);
  CHECK(volume.backward == sent.backward);
  CHECK(mixer_memory(plan, net, row, kElementBytes, false).forward == held.forward);

  LatentAttentionSpec latent;
  latent.attention = plain_attention(4, 4, 8);
  const AttentionMemory attended =
      attention_memory(plan, AttentionShape(latent.attention, kElementBytes), row);
  CHECK(attended.forward > 0);
  CHECK(mixer_memory(plan, latent, row, kElementBytes, false).forward == attended.forward);
}

}  // namespace
}  // namespace longspan
