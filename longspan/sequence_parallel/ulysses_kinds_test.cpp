// The Ulysses kinds where they differ: dummy heads, slices of heads, cuts inside a head, waves.
// P: ranks, N: query heads, M: kv heads, H: head dim.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <numeric>

#include "longspan/plan/parallel_plan.h"
#include "longspan/testing/attention_case.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::AttentionCase;
using testing::AttentionSolution;
using testing::random_case;
using testing::relative_error;
using testing::solve_distributed;
using testing::solve_plainly;
using Mode = SequenceParallelMode;

constexpr double kTolerance = 1e-11;  // see conformance_test.cpp

struct Heads {
  int64_t num, num_kv;
};

ParallelPlan plan_of(Mode mode, int P, int64_t num_heads, int head_waves = 1) {
  ParallelPlan plan;
  plan.world_size = plan.sequence_size = plan.ulysses_size = P;
  plan.mode = mode;
  plan.head_waves = head_waves;
  if (mode == Mode::kXtunerUlysses) {
    plan.num_head_slices = P / std::gcd(P, static_cast<int>(num_heads));
  }
  return plan;
}

bool close(const AttentionSolution& actual, const AttentionSolution& expected) {
  return relative_error(actual.out_TNH, expected.out_TNH) < kTolerance &&
         relative_error(actual.dq_TNH, expected.dq_TNH) < kTolerance &&
         relative_error(actual.dk_TMH, expected.dk_TMH) < kTolerance &&
         relative_error(actual.dv_TMH, expected.dv_TMH) < kTolerance;
}

struct Problems {
  std::vector<AttentionCase> cases;
  std::vector<AttentionSolution> expected;

  explicit Problems(Heads heads, int64_t head_dim = 24) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{61}, {13, 1, 22, 9}, {3}, {16, 16}}) {
      cases.push_back(random_case(lengths, heads.num, heads.num_kv, head_dim, 7));
      expected.push_back(solve_plainly(cases.back()));
    }
  }

  void check(const ParallelPlan& plan, bool checkpointing = false) const {
    const auto solutions = solve_distributed(cases, plan, at::kDouble, checkpointing);
    for (size_t i = 0; i < cases.size(); ++i) {
      CAPTURE(i);
      CHECK(close(solutions[i], expected[i]));
    }
  }
};

}  // namespace

TEST_CASE("ulysses kinds: dummy heads and cuts inside a head, any number of ranks") {
  for (const Heads heads : {Heads{8, 2}, {14, 2}, {6, 6}, {2, 1}, {28, 4}}) {
    const Problems problems(heads);
    for (const int P : {1, 2, 3, 5, 8}) {
      for (const Mode mode : {Mode::kDummyHeadUlysses, Mode::kBalancedUlysses}) {
        CAPTURE(fmt::format("{} heads {}/{} P={}", name_of(mode), heads.num, heads.num_kv, P));
        problems.check(plan_of(mode, P, heads.num));
      }
    }
  }
}

TEST_CASE("ulysses kinds: slices of heads") {
  for (const Heads heads : {Heads{8, 2}, {14, 2}, {6, 6}, {28, 4}}) {
    const Problems problems(heads);
    for (const int P : {2, 3, 4, 6, 8}) {
      CAPTURE(fmt::format("heads {}/{} P={}", heads.num, heads.num_kv, P));
      problems.check(plan_of(Mode::kXtunerUlysses, P, heads.num));
    }
  }
}

TEST_CASE("ulysses kinds: overlapped with what surrounds attention") {
  for (const Heads heads : {Heads{8, 8}, {8, 2}, {12, 3}, {12, 2}}) {
    const Problems problems(heads);
    for (const int P : {2, 4}) {
      for (const int waves : {1, 3}) {
        for (const bool checkpointing : {false, true}) {
          CAPTURE(fmt::format("heads {}/{} P={} waves={} checkpointing={}", heads.num, heads.num_kv,
                              P, waves, checkpointing));
          problems.check(plan_of(Mode::kAsyncUlysses, P, heads.num, waves), checkpointing);
        }
      }
    }
  }
}

TEST_CASE("ulysses kinds: head waves, kept and replayed too") {
  for (const Heads heads : {Heads{8, 8}, {12, 2}, {16, 4}}) {
    const Problems problems(heads);
    for (const int P : {2, 4}) {
      for (const int waves : {2, 3}) {
        for (const bool checkpointing : {false, true}) {
          CAPTURE(fmt::format("heads {}/{} P={} waves={} checkpointing={}", heads.num, heads.num_kv,
                              P, waves, checkpointing));
          if (waves <= heads.num / P) {
            problems.check(plan_of(Mode::kUlysses, P, heads.num, waves), checkpointing);
          }
          problems.check(plan_of(Mode::kBalancedUlysses, P, heads.num, waves), checkpointing);
          problems.check(plan_of(Mode::kBalancedUlysses, P + 1, heads.num, waves), checkpointing);
        }
      }
    }
  }
  // Over an inner ring.
  const Problems problems({8, 4});
  ParallelPlan plan = plan_of(Mode::kUlysses, 4, 8, 2);
  plan.ulysses_size = plan.ring_size = 2;
  problems.check(plan);
}

}  // namespace longspan
