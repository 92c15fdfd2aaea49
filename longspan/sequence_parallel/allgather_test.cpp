#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/geometry.h"
#include "longspan/rows/padding.h"
#include "longspan/testing/method_checks.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

const Method* const kMethod = method_named("allgather");

/// Returns the bytes of keys that ranks need and do not hold, for a row of documents of these
/// lengths: per kv head, with keys and values of one element of one byte.
int64_t foreign_keys(int num_ranks, const std::vector<int64_t>& lengths) {
  AttentionSpec spec = plain_attention(1, 1, 1);
  const AttentionVolume volume =
      attention_volume(testing::plan_of(kMethod, num_ranks), AttentionShape(spec, 1),
                       Packing::from_lengths(lengths));
  CHECK(volume.backward == volume.forward);  // gradients return the same way
  return volume.forward / 2;
}

TEST_CASE("allgather: ranks get what their queries see, and no other key") {
  CHECK(foreign_keys(2, {16}) == 8);
  CHECK(foreign_keys(4, {16}) == 4 + 8 + 12);
  CHECK(foreign_keys(2, {8, 8}) == 0);  // no document spans two ranks
  CHECK(foreign_keys(4, {4, 4, 4, 4}) == 0);
  // Ranks begin at 4, 8 and 12; the first document ends at 5.
  CHECK(foreign_keys(4, {5, 11}) == 4 + 3 + 7);
  CHECK(foreign_keys(4, {5, 3, 1, 7}) == 4 + 0 + 3);
}

TEST_CASE("allgather: a rank's keys end with its last query, and every query sees what it should") {
  for (const int P : {2, 3, 4}) {
    const ParallelPlan plan = testing::plan_of(kMethod, P);
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{24}, {5, 1, 12, 6}, {1, 23}}) {
      CAPTURE(fmt::format("P={} documents {}", P, fmt::join(lengths, " ")));
      const testing::AttentionCase problem =
          testing::random_case(lengths, /*num_heads=*/4, /*num_kv_heads=*/2, /*head_dim=*/16, 3);
      for (int rank = 0; rank < P; ++rank) {
        const auto geometry = kMethod->geometry(plan, problem.spec, problem.packing, rank);
        REQUIRE(geometry.steps.size() == 1);
        REQUIRE(geometry.steps[0].context_keys.size() == 1);
        const TokenSpan& keys = geometry.steps[0].context_keys[0].tokens;
        CHECK(keys.begin + keys.length == (rank + 1) * 24 / P);
      }
      const testing::AttentionSolution expected = testing::solve_plainly(problem);
      const auto actual = testing::solve_distributed(problem, plan, at::kDouble);
      // As in conformance_test.cpp.
      CHECK(testing::relative_error(actual.out_TNH, expected.out_TNH) < 1e-11);
      CHECK(testing::relative_error(actual.dq_TNH, expected.dq_TNH) < 1e-11);
      CHECK(testing::relative_error(actual.dk_TMH, expected.dk_TMH) < 1e-11);
      CHECK(testing::relative_error(actual.dv_TMH, expected.dv_TMH) < 1e-11);
    }
  }
}

TEST_CASE("allgather: a two-way span across a cut is fetched to its end") {
  const ParallelPlan plan = testing::plan_of(kMethod, 3);
  const Packing row = Packing::from_documents({{24, {}, {{1, 3}, {6, 18}}}});
  std::vector<int64_t> ends;
  for (int rank = 0; rank < 3; ++rank) {
    const auto geometry = kMethod->geometry(plan, plain_attention(4, 2, 16), row, rank);
    const TokenSpan& keys = geometry.steps.at(0).context_keys.at(0).tokens;
    ends.push_back(keys.begin + keys.length);
  }
  CHECK(ends == std::vector<int64_t>{18, 18, 24});
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
  // As many tokens, a 16th of the pairs; with one document, the last rank has the most work.
  CHECK(seconds({2048, 2048, 2048, 2048}) < seconds({8192}) / 4);
  CHECK(seconds({2048, 2048, 2048, 2048}) < seconds({1024, 2048, 2048, 2048, 1024}));
}

}  // namespace
}  // namespace longspan
