// The order in which sharded parameters start their collectives.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/optim/sharded_parameters.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/recorded_starts.h"

namespace longspan {
namespace {

constexpr int kUnits = 4;

std::vector<ParameterSource> sources_of_units() {
  std::vector<ParameterSource> sources;
  for (int unit = 0; unit < kUnits; ++unit) {
    ParameterSpec spec;
    spec.name = std::to_string(unit);
    spec.shape = {128};
    spec.unit = unit;
    sources.push_back({spec, at::kFloat, /*trained=*/true, [] { return at::ones({128}); }});
  }
  return sources;
}

// NCCL runs the collectives of a group one after the other, in the order of their starts. A gather
// behind the sum of the last unit would keep the backward of the next unit waiting.
TEST_CASE("sharding: the gather of the next unit starts before the sum of the last one") {
  using enum ParameterHooks::Use;
  testing::recorded_starts().clear();
  testing::run_ranks(
      2,
      [&](const Mesh& mesh) {
        ShardedParameters sharded(sources_of_units(),
                                  {.stage = 3, .shard = mesh.world, .replicas = {}});
        for (int unit = kUnits - 1; unit >= 0; --unit) {
          sharded.before(unit, kBackward, unit - 1);
          if (unit > 0) sharded.after(unit, kBackward);
        }
        sharded.end_backward();
        sharded.finish_gradients();
        sharded.drop_gradients();
      },
      testing::recording_link());
  CHECK(testing::recorded_starts() == "gggsgsss");
}

/// Ranks that share the states, and copies of the states.
struct Ranks {
  int sharing = 1, copies = 1;
};

/// Returns the starts of a step of two rows, with a point after each unit's backward. `num_uses`:
/// of each unit in a row.
std::string starts_of_step(int stage, Ranks ranks, int num_uses = 1) {
  using enum ParameterHooks::Use;
  testing::recorded_starts().clear();
  ParallelPlan plan;
  plan.world_size = plan.data_size = ranks.sharing * ranks.copies;
  plan.shard_size = ranks.sharing;
  testing::run_ranks(
      plan,
      [&](const Mesh& mesh) {
        ShardedParameters sharded(sources_of_units(),
                                  {.stage = stage, .shard = mesh.shard, .replicas = mesh.replicas});
        for (const bool is_last : {false, true}) {
          if (is_last) sharded.begin_last_row();
          for (int unit = 0; unit < kUnits * num_uses; ++unit) {
            sharded.before(unit % kUnits, kForward, -1);
            sharded.after(unit % kUnits, kForward);
          }
          for (int i = kUnits * num_uses - 1; i >= 0; --i) {
            sharded.before(i % kUnits, kBackward, -1);
            if (i > 0) sharded.after(i % kUnits, kBackward);
            if (mesh.world.rank() == 0) testing::recorded_starts() += '.';
          }
          sharded.end_backward();
        }
        sharded.start_sums();
        if (mesh.world.rank() == 0) testing::recorded_starts() += '|';
        sharded.finish_gradients();
        for (const ParameterShard& shard : sharded.shards()) {
          if (!shard.values.grad().defined()) throw std::runtime_error("no gradient");
        }
        sharded.drop_gradients();
      },
      testing::recording_link());
  return testing::recorded_starts();
}

TEST_CASE("sharding: sums of a step start in the backward of its last row, a unit at a time") {
  // Stage 1: the reduce-scatter of a unit starts with the backward of the next one.
  CHECK(starts_of_step(1, {.sharing = 2}) == ".....s.s.s.s|");
  // A unit that is used twice is complete after the second backward.
  CHECK(starts_of_step(1, {.sharing = 2}, /*num_uses=*/2) == ".............s.s.s.s|");
  // Stage 0, and hybrids: the sum over the replicas starts once the reduce-scatter is over, with
  // the end of the next unit's backward.
  for (const int stage : {0, 2}) {
    CAPTURE(stage);
    CHECK(starts_of_step(stage, {.copies = 2}) == ".....r.r..r|r");
  }
  CHECK(starts_of_step(1, {.sharing = 2, .copies = 2}) == ".....sr.sr.s.rs|r");
}

}  // namespace
}  // namespace longspan
