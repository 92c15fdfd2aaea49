// Every method against undistributed attention written with basic operations.
// T: tokens of the row, P: ranks, N: query heads, M: kv heads, H: head dim.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>

#include "longspan/config/user_error.h"
#include "longspan/plan/attention_volume.h"
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
constexpr Heads kHeads[] = {{8, 8},  {8, 2},  {8, 1},  {14, 2},
                            {28, 4}, {12, 2}, {40, 8}, {6, 6}};
// Slices of heads divide it for 2, 3, 4, 6 and 8 ranks, and are refused for 5 and 7.
constexpr int64_t kHeadDim = 24;
using Mode = SequenceParallelMode;

ParallelPlan plan_of(Mode mode, int P, Heads heads, int head_waves = 1) {
  PlanRequest request;
  request.world_size = request.sequence_size = P;
  request.mode = mode;
  request.num_heads = heads.num;
  request.num_kv_heads = heads.num_kv;
  request.head_dim = kHeadDim;
  if (head_waves > 1) request.head_waves = head_waves;
  return make_parallel_plan(request);
}

bool serves(Mode mode, int P, Heads heads) {
  return P == 1 || can_split(mode, P, heads.num, heads.num_kv, kHeadDim);
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
const NamedRow kRows[] = {{"one document", {61}},
                          {"ragged documents", {13, 1, 22, 9}},
                          {"row shorter than 2 P", {3}},
                          {"batch of equal rows", {16, 16, 16}}};

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

  void check(const ParallelPlan& plan, bool checkpointing = false) const {
    const auto solutions = solve_distributed(cases, plan, at::kDouble, checkpointing);
    for (size_t i = 0; i < cases.size(); ++i) {
      CAPTURE(names[i]);
      check_close(solutions[i], expected[i], kTolerance);
    }
  }
};

const std::vector<Problems>& problems_by_heads() {
  static const std::vector<Problems> problems = [] {
    std::vector<Problems> all(std::size(kHeads));
    for (size_t i = 0; i < all.size(); ++i) all[i].add(kHeads[i]);
    return all;
  }();
  return problems;
}

// Starting ranks costs more than most problems: those of the same plan share one start.
void check_mode(Mode mode, int P) {
  struct Shared {
    ParallelPlan plan;
    Problems problems;
  };
  std::map<std::vector<int>, Shared> by_plan;
  for (size_t i = 0; i < std::size(kHeads); ++i) {
    if (!serves(mode, P, kHeads[i])) {
      // The refusal names modes that serve; balanced-ulysses always does.
      CHECK_THROWS_WITH_AS(plan_of(mode, P, kHeads[i]), doctest::Contains("balanced-ulysses"),
                           UserError);
      continue;
    }
    const ParallelPlan plan = plan_of(mode, P, kHeads[i]);
    Shared& shared = by_plan[{plan.ulysses_size, plan.ring_size, plan.window_size,
                              plan.num_head_slices}];
    shared.plan = plan;
    shared.problems.append(problems_by_heads()[i]);
  }
  for (const auto& [key, shared] : by_plan) shared.problems.check(shared.plan);
}

TEST_CASE("conformance: every mode, degree, grouping and packing, fp64, output and gradients") {
  for (const Mode mode : all_modes()) {
    for (int P = 1; P <= 8; ++P) {
      CAPTURE(fmt::format("{} P={}", name_of(mode), P));
      check_mode(mode, P);
    }
  }
}

TEST_CASE("conformance: every composition of degrees and windows") {
  const Problems& problems = problems_by_heads()[1];  // 8/2
  for (const auto& [ulysses, ring, window] :
       {std::tuple{2, 2, 1}, {2, 3, 1}, {4, 2, 1}, {2, 4, 1}, {2, 4, 2}, {1, 4, 2}, {1, 6, 3},
        {1, 6, 2}, {4, 2, 2}, {1, 8, 4}}) {
    CAPTURE(fmt::format("ulysses {} ring {} window {}", ulysses, ring, window));
    PlanRequest request;
    request.world_size = request.sequence_size = ring * ulysses;
    request.mode = window > 1 ? Mode::kLoongTrain : Mode::kUsp;
    request.ulysses_degree = ulysses;
    request.ring_degree = ring;
    if (window > 1) request.window_size = window;
    request.num_heads = 8;
    request.num_kv_heads = 2;
    const ParallelPlan plan = make_parallel_plan(request);
    REQUIRE(plan.ring_size == ring);
    problems.check(plan);
  }
}

TEST_CASE("conformance: head waves") {
  for (const Mode mode : {Mode::kUlysses, Mode::kDummyHeadUlysses, Mode::kBalancedUlysses,
                          Mode::kAsyncUlysses, Mode::kUsp}) {
    for (const auto& [P, waves] : {std::pair{2, 4}, {4, 2}}) {
      CAPTURE(fmt::format("{} P={} waves={}", name_of(mode), P, waves));
      for (const size_t heads : {0, 1}) {  // 8/8, 8/2
        problems_by_heads()[heads].check(plan_of(mode, P, kHeads[heads], waves));
      }
    }
  }
}

TEST_CASE("conformance: kept and replayed attention gives the same bits") {
  const AttentionCase problem = random_case({37, 1, 64, 90, 16}, 8, 2, kHeadDim, 10);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const Mode mode : all_modes()) {
      CAPTURE(fmt::format("{} {}", name_of(mode), c10::toString(dtype)));
      const ParallelPlan plan = plan_of(mode, 4, {8, 2});
      const DistributedSolution once = solve_distributed(problem, plan, dtype);
      const DistributedSolution replayed = solve_distributed(problem, plan, dtype, true);
      CHECK(replayed.out_TNH.equal(once.out_TNH));
      CHECK(replayed.dq_TNH.equal(once.dq_TNH));
      CHECK(replayed.dk_TMH.equal(once.dk_TMH));
      CHECK(replayed.dv_TMH.equal(once.dv_TMH));
    }
  }
}

TEST_CASE("conformance: bytes sent are those of the formula") {
  struct Choice {
    Mode mode;
    int waves;
  };
  std::vector<Choice> choices{{Mode::kUlysses, 2}, {Mode::kBalancedUlysses, 3}};
  for (const Mode mode : all_modes()) choices.push_back({mode, 1});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [mode, waves] : choices) {
      for (const int P : {2, 3, 4, 8}) {
        for (const bool checkpointing : {false, true}) {
          for (const Heads heads : {Heads{8, 2}, {14, 2}, {28, 4}}) {
            if (!serves(mode, P, heads)) continue;
            if (waves > 1 && mode == Mode::kUlysses && waves > heads.num / P) continue;
            CAPTURE(fmt::format("{} P={} waves={} heads {}/{} {} checkpointing={}", name_of(mode),
                                P, waves, heads.num, heads.num_kv, c10::toString(dtype),
                                checkpointing));
            const ParallelPlan plan = plan_of(mode, P, heads, waves);
            const AttentionCase problem =
                random_case({37, 1, 64, 9}, heads.num, heads.num_kv, kHeadDim, 11);
            const auto solution = solve_distributed(problem, plan, dtype, checkpointing);
            const AttentionVolume formula = attention_volume(
                plan,
                {heads.num, heads.num_kv, kHeadDim, static_cast<int64_t>(c10::elementSize(dtype)), 4},
                solution.padded, checkpointing);
            const Traffic& sent = solution.traffic;
            CHECK(sent.all_to_all + sent.all_gather + sent.reduce_scatter + sent.shift ==
                  formula.forward + formula.backward);
          }
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
  for (const Mode mode : all_modes()) {
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
