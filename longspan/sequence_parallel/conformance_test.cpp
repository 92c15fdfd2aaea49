// Every method against undistributed attention written with basic operations.
// T: tokens of the row, P: ranks, N: query heads, M: kv heads, H: head dim.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "longspan/config/user_error.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/testing/attention_case.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::AttentionCase;
using testing::AttentionSolution;
using testing::DistributedSolution;
using testing::random_case;
using testing::relative_error;
using testing::solve_distributed;
using testing::solve_plainly;

struct Heads {
  int64_t num, num_kv;
};
constexpr Heads kHeads[] = {{8, 8}, {8, 2}, {14, 2}};
constexpr int64_t kHeadDim = 16;

ParallelPlan plan_of(SequenceParallelMode mode, int P, Heads heads) {
  return make_parallel_plan(P, P, mode, heads.num, heads.num_kv);
}

// fp64 keeps 16 digits; a sum of some hundred terms and an exp lose two of them. The rest up to
// 1e-11 is room for other machines' orders of summation; any error of method is larger by many
// orders.
constexpr double kTolerance = 1e-11;

void check_close(const AttentionSolution& actual, const AttentionSolution& expected,
                 double tolerance) {
  CHECK(relative_error(actual.out_TNH, expected.out_TNH) < tolerance);
  CHECK(relative_error(actual.dq_TNH, expected.dq_TNH) < tolerance);
  CHECK(relative_error(actual.dk_TMH, expected.dk_TMH) < tolerance);
  CHECK(relative_error(actual.dv_TMH, expected.dv_TMH) < tolerance);
}

struct NamedRow {
  const char* name;
  std::vector<int64_t> lengths;
};
// A batch is one row with a document for each sample; its samples may be equally long.
const NamedRow kRows[] = {{"one document", {193}},
                          {"ragged documents", {37, 1, 64, 90, 16}},
                          {"row shorter than P", {2}},
                          {"batch of equal rows", {48, 48, 48}}};

struct Problems {
  std::vector<std::string> names;
  std::vector<AttentionCase> cases;
  std::vector<AttentionSolution> expected;

  void add(Heads heads) {
    for (const NamedRow& row : kRows) {
      names.push_back(fmt::format("heads {}/{}, {}", heads.num, heads.num_kv, row.name));
      cases.push_back(random_case(row.lengths, heads.num, heads.num_kv, kHeadDim, 7));
      expected.push_back(solve_plainly(cases.back()));
    }
  }

  void append(const Problems& other) {
    names.insert(names.end(), other.names.begin(), other.names.end());
    cases.insert(cases.end(), other.cases.begin(), other.cases.end());
    expected.insert(expected.end(), other.expected.begin(), other.expected.end());
  }

  void check(const ParallelPlan& plan) const {
    const auto solutions = solve_distributed(cases, plan, at::kDouble);
    for (size_t i = 0; i < cases.size(); ++i) {
      CAPTURE(names[i]);
      check_close(solutions[i], expected[i], kTolerance);
    }
  }
};

TEST_CASE("conformance: every mode, degree, grouping and packing, fp64, output and gradients") {
  std::vector<Problems> by_heads(std::size(kHeads));
  for (size_t i = 0; i < by_heads.size(); ++i) by_heads[i].add(kHeads[i]);
  for (const auto mode : {SequenceParallelMode::kUlysses, SequenceParallelMode::kZigzagRing}) {
    for (const int P : {1, 2, 3, 4, 8}) {
      CAPTURE(fmt::format("{} P={}", name_of(mode), P));
      Problems problems;
      ParallelPlan plan;
      for (size_t i = 0; i < by_heads.size(); ++i) {
        if (P == 1 || can_split(mode, P, kHeads[i].num, kHeads[i].num_kv)) {
          problems.append(by_heads[i]);
          plan = plan_of(mode, P, kHeads[i]);
        } else {
          CHECK_THROWS_WITH_AS(plan_of(mode, P, kHeads[i]), doctest::Contains("zigzag-ring"),
                               UserError);
        }
      }
      // Three ranks split none of these heads by Ulysses, and nothing is left to compare.
      if (!problems.cases.empty()) problems.check(plan);
    }
  }
}

TEST_CASE("conformance: cuts through a group of heads (12 heads of 3 kv heads over 2, 4, 6, 12)") {
  const AttentionCase problem = random_case({50, 13}, 12, 3, kHeadDim, 8);
  const AttentionSolution expected = solve_plainly(problem);
  for (const int P : {2, 4, 6, 12}) {
    CAPTURE(P);
    check_close(solve_distributed(problem, plan_of(SequenceParallelMode::kUlysses, P, {12, 3}),
                                  at::kDouble),
                expected, kTolerance);
  }
}

TEST_CASE("conformance: the composition Ulysses(Ring)") {
  Problems problems;
  problems.add({8, 2});
  problems.add({12, 3});
  for (const auto& [ring, ulysses] : {std::pair{2, 2}, {2, 4}, {4, 2}, {3, 2}}) {
    CAPTURE(fmt::format("ring {} ulysses {}", ring, ulysses));
    ParallelPlan plan;
    plan.world_size = plan.sequence_size = ring * ulysses;
    plan.ring_size = ring;
    plan.ulysses_size = ulysses;
    problems.check(plan);
  }
}

TEST_CASE("conformance: kept and replayed attention gives the same bits") {
  const AttentionCase problem = random_case({37, 1, 64, 90, 16}, 8, 2, kHeadDim, 10);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const auto& [mode, P] : {std::pair{SequenceParallelMode::kUlysses, 1},
                                  {SequenceParallelMode::kUlysses, 4},
                                  {SequenceParallelMode::kZigzagRing, 3}}) {
      CAPTURE(fmt::format("{} P={} {}", name_of(mode), P, c10::toString(dtype)));
      const ParallelPlan plan = plan_of(mode, P, {8, 2});
      const DistributedSolution once = solve_distributed(problem, plan, dtype);
      const DistributedSolution replayed = solve_distributed(problem, plan, dtype, true);
      CHECK(replayed.out_TNH.equal(once.out_TNH));
      CHECK(replayed.dq_TNH.equal(once.dq_TNH));
      CHECK(replayed.dk_TMH.equal(once.dk_TMH));
      CHECK(replayed.dv_TMH.equal(once.dv_TMH));
    }
  }
}

// In elements of T H, summed over ranks. Ulysses, each way: a rank keeps 1/P of what it computes
// with, so (P-1)/P of N query heads, N output heads and of each rank's kv heads twice; the backward
// returns the same. Ring: (P-1) hops of all kv heads twice, in the forward, in the backward, and
// once more for the gradients, which are fp32 where the row is bf16.
TEST_CASE("conformance: bytes sent are those of the formula") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const int64_t bytes = c10::elementSize(dtype), gradient_bytes = 4;
    for (const int P : {2, 4, 8}) {
      CAPTURE(fmt::format("P={} {}", P, c10::toString(dtype)));
      for (const auto mode : {SequenceParallelMode::kUlysses, SequenceParallelMode::kZigzagRing}) {
        std::vector<Heads> able;
        std::vector<AttentionCase> problems;
        for (const Heads heads : kHeads) {
          if (!can_split(mode, P, heads.num, heads.num_kv)) continue;
          able.push_back(heads);
          problems.push_back(
              random_case({37, 1, 64, 90, 16}, heads.num, heads.num_kv, kHeadDim, 11));
        }
        const auto solutions = solve_distributed(problems, plan_of(mode, P, able[0]), dtype);
        for (size_t i = 0; i < able.size(); ++i) {
          const int64_t T = solutions[i].num_padded_tokens, N = able[i].num, M = able[i].num_kv;
          // Here P and M divide one another: a rank needs one kv head, or its own M / P.
          const int64_t kv_copies = std::max<int64_t>(M, P);
          const bool ulysses = mode == SequenceParallelMode::kUlysses;
          CHECK(solutions[i].traffic.all_to_all ==
                (ulysses ? 2 * (P - 1) * (T / P) * (2 * N + 2 * kv_copies) * kHeadDim * bytes : 0));
          CHECK(solutions[i].traffic.shift ==
                (ulysses ? 0 : (P - 1) * T * 2 * M * kHeadDim * (2 * bytes + gradient_bytes)));
        }
      }
    }
  }
}

TEST_CASE("conformance: bf16 at P = 8 errs at most 1.5 times as much as undistributed bf16") {
  const Heads heads{8, 2};
  AttentionCase problem = random_case({700, 324}, heads.num, heads.num_kv, 64, 12);
  // Inputs that bf16 holds exactly, so that only the computation is compared.
  for (at::Tensor* x : {&problem.q_TNH, &problem.k_TMH, &problem.v_TMH, &problem.dout_TNH}) {
    *x = x->to(at::kBFloat16).to(at::kDouble);
  }
  const AttentionSolution exact = solve_plainly(problem);
  const auto alone = solve_distributed(problem, ParallelPlan{}, at::kBFloat16);
  for (const auto mode : {SequenceParallelMode::kUlysses, SequenceParallelMode::kZigzagRing}) {
    CAPTURE(name_of(mode));
    const auto spread = solve_distributed(problem, plan_of(mode, 8, heads), at::kBFloat16);
    auto check = [&](const at::Tensor& x, const at::Tensor& alone, const at::Tensor& exact) {
      const double error = relative_error(x, exact);
      CHECK(error < 1.5 * relative_error(alone, exact));
      CHECK(error < 0.01);  // some roundings of 2^-9 each
    };
    check(spread.out_TNH, alone.out_TNH, exact.out_TNH);
    check(spread.dq_TNH, alone.dq_TNH, exact.dq_TNH);
    check(spread.dk_TMH, alone.dk_TMH, exact.dk_TMH);
    check(spread.dv_TMH, alone.dv_TMH, exact.dv_TMH);
  }
}

}  // namespace
}  // namespace longspan
