#include <doctest/doctest.h>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/sequence_parallel/padding.h"
#include "longspan/testing/method_checks.h"

namespace longspan {
namespace {

const Method* const kMethod = method_named("allgather");

/// Keys that ranks do not hold and need, of a row of so many documents: what a kv head sends with
/// keys and values of one number of one byte.
int64_t foreign_keys(int num_ranks, const std::vector<int64_t>& lengths) {
  AttentionSpec spec = plain_attention(1, 1, 1);
  const AttentionVolume volume =
      attention_volume(testing::plan_of(kMethod, num_ranks), AttentionShape(spec, 1),
                       Packing::from_lengths(lengths));
  CHECK(volume.backward == volume.forward);  // gradients make the same way back
  return volume.forward / 2;
}

TEST_CASE("allgather: ranks get what their queries see, and no other key") {
  CHECK(foreign_keys(2, {16}) == 8);
  CHECK(foreign_keys(4, {16}) == 4 + 8 + 12);
  CHECK(foreign_keys(2, {8, 8}) == 0);  // nobody's document begins on another rank
  CHECK(foreign_keys(4, {4, 4, 4, 4}) == 0);
  // Ranks begin at 4, 8 and 12; the first document ends at 5.
  CHECK(foreign_keys(4, {5, 11}) == 4 + 3 + 7);
  CHECK(foreign_keys(4, {5, 3, 1, 7}) == 4 + 0 + 3);
}

TEST_CASE("allgather: the row is padded at its tail") {
  for (const int P : {2, 3}) {
    testing::check_token_orders(testing::plan_of(kMethod, P),
                                [P](const Packing& row, int64_t multiple) {
                                  return round_up(row.num_tokens(), P * multiple);
                                });
  }
}

TEST_CASE("allgather: documents that lie on one rank each are estimated cheaper than others") {
  PlanRequest request;
  request.world_size = request.sequence_size = 4;
  request.method = kMethod;
  request.num_heads = 8;
  request.num_kv_heads = 2;
  const AttentionShape shape(attention_of(request));
  const ClusterModel cluster = cluster_model(/*cuda=*/false, 4, 4);
  const auto seconds = [&](const std::vector<int64_t>& lengths) {
    return attention_seconds(make_parallel_plan(request), shape, Packing::from_lengths(lengths),
                             /*checkpointing=*/true, cluster);
  };
  // As many tokens, a 16th of the pairs; the last rank has the most to do with one document.
  CHECK(seconds({2048, 2048, 2048, 2048}) < seconds({8192}) / 4);
  CHECK(seconds({2048, 2048, 2048, 2048}) < seconds({1024, 2048, 2048, 2048, 1024}));
}

}  // namespace
}  // namespace longspan
