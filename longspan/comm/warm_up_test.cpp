#include "longspan/comm/warm_up.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

#include "longspan/comm/submeshes.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

// CHECK is not thread-safe.
#define RANK_CHECK(condition) \
  if (!(condition)) throw std::runtime_error("rank check failed: " #condition)

TEST_CASE("warm up: each group has run the kinds of collectives that it may run later") {
  ParallelPlan plan;
  plan.world_size = 8;
  plan.sequence_size = 4;
  plan.ring_size = plan.ulysses_size = plan.window_size = 2;
  plan.data_size = 2;
  plan.shard_size = 4;
  plan.expert_parallel_size = 2;
  testing::run_ranks(plan, [](const Mesh& mesh) {
    warm_up(mesh, at::kCPU);
    for (const Group* group : {&mesh.sequence, &mesh.ring, &mesh.ulysses}) {
      const Traffic sent = group->traffic();
      RANK_CHECK(sent.all_to_all > 0 && sent.all_gather > 0 && sent.reduce_scatter > 0);
      RANK_CHECK(sent.shift > 0 && sent.sum > 0);
    }
    for (const Group* group : {&mesh.shard, &mesh.expert_shard}) {
      RANK_CHECK(group->traffic().all_gather > 0 && group->traffic().reduce_scatter > 0);
    }
    RANK_CHECK(mesh.experts.traffic().all_to_all > 0);
    for (const Group* group : {&mesh.world, &mesh.data, &mesh.replicas}) {
      // An all-to-all would connect each rank with each other one.
      RANK_CHECK(group->traffic().sum > 0 && group->traffic().all_to_all == 0);
    }
  });
}

TEST_CASE("warm up: groups of rows with ranks of their own, too") {
  ParallelPlan plan;
  plan.world_size = 4;
  plan.data_size = 4;
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    std::vector<const Mesh*> parts;
    for (const RankRange& range : {RankRange{rank / 2 * 2, 2}, RankRange{0, 4}}) {
      ParallelPlan own;
      own.world_size = own.sequence_size = own.ulysses_size = range.count;
      parts.push_back(&mesh.parts->of(range, own));
    }
    warm_up(mesh, at::kCPU);
    for (const Mesh* part : parts) RANK_CHECK(part->sequence.traffic().shift > 0);
  });
}

}  // namespace
}  // namespace longspan
