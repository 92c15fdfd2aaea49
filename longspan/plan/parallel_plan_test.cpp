#include "longspan/plan/parallel_plan.h"

#include <doctest/doctest.h>

#include "longspan/config/user_error.h"

namespace longspan {
namespace {

using Mode = SequenceParallelMode;

TEST_CASE("plan: sizes of a mesh") {
  const ParallelPlan plan = make_parallel_plan(8, 2, Mode::kUlysses, 14, 2);
  CHECK(plan.data_size == 4);
  CHECK(plan.ulysses_size == 2);
  CHECK(plan.ring_size == 1);
  CHECK(make_parallel_plan(8, 4, Mode::kZigzagRing, 14, 2).ring_size == 4);
  CHECK(make_parallel_plan(4, 1, Mode::kUlysses, 7, 1).mode == Mode::kLocal);
}

TEST_CASE("plan: without a mode, ulysses where the heads divide, else the ring") {
  CHECK(make_parallel_plan(2, 2, std::nullopt, 14, 2).mode == Mode::kUlysses);
  CHECK(make_parallel_plan(4, 4, std::nullopt, 14, 2).mode == Mode::kZigzagRing);
  CHECK(make_parallel_plan(8, 8, std::nullopt, 8, 2).mode == Mode::kUlysses);  // fewer kv heads
}

TEST_CASE("plan: errors say what was given, the limit and the remedy") {
  CHECK_THROWS_WITH_AS(make_parallel_plan(6, 4, std::nullopt, 8, 8),
                       doctest::Contains("4 does not divide the number of processes, 6. Choose one "
                                         "of 1, 2, 3, 6"),
                       UserError);
  CHECK_THROWS_WITH_AS(make_parallel_plan(4, 4, Mode::kUlysses, 14, 2),
                       doctest::Contains("Modes that can split them: zigzag-ring"), UserError);
  CHECK_THROWS_WITH_AS(make_parallel_plan(1, 8, std::nullopt, 8, 8),
                       doctest::Contains("Set nproc_per_node: 8"), UserError);
  CHECK_THROWS_AS(make_parallel_plan(4, 0, std::nullopt, 8, 8), UserError);
  CHECK_THROWS_WITH_AS(sequence_parallel_mode_from("ring"),
                       doctest::Contains("ulysses, zigzag-ring"), UserError);
  for (Mode mode : {Mode::kUlysses, Mode::kZigzagRing}) {
    CHECK(sequence_parallel_mode_from(name_of(mode)) == mode);
  }
}

}  // namespace
}  // namespace longspan
