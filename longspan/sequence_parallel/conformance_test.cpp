// Compares every method to undistributed attention written in basic operations. T: tokens of the
// row, P: ranks, N: query heads, M: kv heads, H: elements of a head.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/conformance.h"

namespace longspan {
namespace {

using testing::all_problems;
using testing::AttentionCase;
using testing::AttentionSolution;
using testing::Conformance;
using testing::DistributedSolution;
using testing::DistributedTask;
using testing::Heads;
using testing::kHeadDim;
using testing::plan_of;
using testing::Problem;
using testing::random_case;
using testing::relative_error;
using testing::request_of;
using testing::serves;
using testing::solve_all;
using testing::solve_distributed;
using testing::solve_plainly;
using testing::spec_of;

TEST_CASE("conformance: every method, degree, grouping and packing, fp64, output and gradients") {
  Conformance conformance;
  for (const Method* method : all_methods()) {
    for (int P = 1; P <= 8; ++P) {
      for (const Problem& problem : all_problems()) {
        CAPTURE(fmt::format("{} P={} {}", method->name, P, problem.name));
        if (serves(method, P, problem.heads)) {
          conformance.add(plan_of(method, P, problem.heads), problem);
        } else {
          // The refusal lists modes that serve; balanced-ulysses always does.
          CHECK_THROWS_WITH_AS(plan_of(method, P, problem.heads),
                               doctest::Contains("balanced-ulysses"), UserError);
        }
      }
    }
  }
  conformance.check();
}

TEST_CASE("conformance: every composition of degrees and windows, and head waves") {
  Conformance conformance;
  for (const auto& [ulysses, ring, window] : {std::tuple{2, 2, 1},
                                              {2, 3, 1},
                                              {4, 2, 1},
                                              {2, 4, 1},
                                              {2, 4, 2},
                                              {1, 4, 2},
                                              {1, 6, 3},
                                              {1, 6, 2},
                                              {1, 8, 4}}) {
    for (const Method* method : methods_that_take(kUlyssesDegree)) {
      if (window > 1 && !takes(*method, kWindowSize)) continue;
      PlanRequest request;
      request.world_size = request.sequence_size = ring * ulysses;
      request.method = method;
      request.ulysses_degree = ulysses;
      request.ring_degree = ring;
      if (takes(*method, kWindowSize)) request.window_size = window;
      for (const Problem& problem : all_problems()) {
        if (problem.heads.num != 8) continue;
        request.num_heads = problem.heads.num;
        request.num_kv_heads = problem.heads.num_kv;
        for (const int waves : {1, 2}) {
          if (waves > 1 && ulysses != 2) continue;
          request.head_waves = waves;
          conformance.add(make_parallel_plan(request), problem, /*checkpointing=*/waves > 1);
        }
      }
    }
  }
  for (const Method* method : methods_that_take(kHeadWaves)) {
    if (takes(*method, kUlyssesDegree)) continue;
    for (const auto& [P, waves] : {std::pair{2, 2}, {2, 4}, {4, 2}, {3, 2}}) {
      for (const Problem& problem : all_problems()) {
        if (problem.heads.num > 14 || !serves(method, P, problem.heads)) continue;
        if (!cuts_heads(*method) && waves > (problem.heads.num + P - 1) / P) continue;
        for (const bool checkpointing : {false, true}) {
          conformance.add(plan_of(method, P, problem.heads, waves), problem, checkpointing);
        }
      }
    }
  }
  conformance.check();
}

TEST_CASE(
    "conformance: forks and two-way spans, every method, with composed degrees and head waves") {
  // Branches of one token; documents with and without forks, some on a single rank. Two-way spans
  // on one rank, across several, of one token, side by side, in branches and before them.
  const Packing rows[] = {Packing::from_documents({{61, Fork{20, 44}}}),
                          Packing::from_documents({{13, Fork{5, 9}},
                                                   {9},
                                                   {3, Fork{1, 2}},
                                                   {22, Fork{15, 16}},
                                                   {7, Fork{2, 6}},
                                                   {24, Fork{1, 20}}}),
                          Packing::from_documents({{61, {}, {{3, 30}, {30, 31}, {33, 58}}}}),
                          Packing::from_documents({{13, Fork{5, 9}, {{1, 4}, {5, 9}, {10, 12}}},
                                                   {9, {}, {{0, 9}}},
                                                   {22, Fork{15, 16}, {{2, 14}, {17, 22}}},
                                                   {1, {}, {{0, 1}}},
                                                   {24, {}, {{20, 24}}}})};
  std::vector<Problem> problems;
  for (const Heads heads : {Heads{8, 2}, {14, 2}}) {
    for (const Packing& row : rows) {
      AttentionCase problem = random_case(row, heads.num, heads.num_kv, kHeadDim, 8);
      AttentionSolution expected = solve_plainly(problem);
      problems.push_back({fmt::format("heads {}/{}, {} documents, {} spans", heads.num,
                                      heads.num_kv, row.num_documents(), row.two_way().size()),
                          heads, std::move(problem), std::move(expected)});
    }
  }
  Conformance conformance;
  for (const Problem& problem : problems) {
    for (const Method* method : all_methods()) {
      for (const int P : {1, 2, 3, 4, 8}) {
        if (serves(method, P, problem.heads)) {
          conformance.add(plan_of(method, P, problem.heads), problem, /*checkpointing=*/P == 2);
        }
      }
    }
    conformance.add(plan_of(method_named("balanced-ulysses"), 3, problem.heads, 2), problem);
    if (problem.heads.num != 8) continue;
    for (const auto& [ulysses, ring, window, waves] :
         {std::tuple{2, 2, 1, 2}, {2, 4, 2, 1}, {1, 4, 2, 1}}) {
      PlanRequest request;
      request.world_size = request.sequence_size = ring * ulysses;
      request.method = window > 1 ? method_named("loongtrain") : method_named("usp");
      request.num_heads = problem.heads.num;
      request.num_kv_heads = problem.heads.num_kv;
      request.ulysses_degree = ulysses;
      request.ring_degree = ring;
      if (window > 1) request.window_size = window;
      if (waves > 1) request.head_waves = waves;
      conformance.add(make_parallel_plan(request), problem);
    }
  }
  conformance.check();
}

/// A scale that belongs to no head dim; values wider and narrower than keys.
std::vector<AttentionSpec> other_specs(Heads heads) {
  std::vector<AttentionSpec> specs(4, spec_of(heads));
  specs[0].scale = 0.3217;
  specs[1].value_dim = 36;
  specs[2].value_dim = 12;
  specs[3].key_dim = 8;
  specs[3].scale = 0.09;
  return specs;
}

TEST_CASE("conformance: scales and head dims of values, every method, degrees, windows and waves") {
  std::vector<Problem> problems;
  for (const Heads heads : {Heads{8, 2}, {14, 2}}) {
    for (const AttentionSpec& spec : other_specs(heads)) {
      // Each spec meets both rows, with one of the heads each.
      const bool forked = (problems.size() + problems.size() / 4) % 2 == 1;
      const Packing row = forked ? Packing::from_documents({{31, Fork{11, 24}}, {7}})
                                 : Packing::from_lengths({13, 1, 22, 9});
      AttentionCase problem = random_case(row, spec, 9);
      AttentionSolution expected = solve_plainly(problem);
      problems.push_back({fmt::format("heads {}/{} of {} and {}, scale {}", heads.num, heads.num_kv,
                                      spec.key_dim, spec.value_dim, spec.scale),
                          heads, std::move(problem), std::move(expected)});
    }
  }
  Conformance conformance;
  for (const Problem& problem : problems) {
    const AttentionSpec& spec = problem.problem.spec;
    const auto add = [&](const PlanRequest& request) {
      const ParallelPlan plan = make_parallel_plan(request);
      conformance.add(plan, problem);
      conformance.add(plan, problem, /*checkpointing=*/true, /*output_is_known=*/true);
    };
    for (const Method* method : all_methods()) {
      for (const int P : {1, 2, 3, 4}) {
        if (P > 1 && !can_split(*method, P, spec)) continue;
        PlanRequest request = request_of(method, P, spec);
        add(request);
        request.head_waves = 2;
        if (P == 2 && takes(*method, kHeadWaves) && !takes(*method, kUlyssesDegree)) add(request);
      }
    }
    PlanRequest request = request_of(method_named("usp"), 4, spec);
    request.ulysses_degree = 2;
    add(request);
    request.head_waves = 2;
    add(request);
    request = request_of(method_named("loongtrain"), 4, spec);
    request.ulysses_degree = 1;
    request.window_size = 2;
    add(request);
  }
  conformance.check();
}

TEST_CASE("conformance: slices of heads must divide values too") {
  AttentionSpec spec = plain_attention(6, 2, 16);
  CHECK(can_split(*method_named("xtuner-ulysses"), 4, spec));
  spec.value_dim = 15;
  CHECK(!can_split(*method_named("xtuner-ulysses"), 4, spec));
  CHECK_THROWS_WITH_AS(make_parallel_plan(request_of(method_named("xtuner-ulysses"), 4, spec)),
                       doctest::Contains("does not divide head_dim of values, 15"), UserError);
}

TEST_CASE("conformance: saved and replayed attention gives the same bits") {
  AttentionSpec featured = spec_of({8, 2});
  featured.window = 29;
  featured.has_sinks = true;
  const Packing row = Packing::from_lengths({37, 1, 64, 90, 16});
  const AttentionCase plain = random_case(row, spec_of({8, 2}), 10),
                      windowed = random_case(row, featured, 10);
  std::vector<DistributedTask> tasks;
  for (const Method* method : all_methods()) {
    for (const int waves : {1, 2, -1}) {
      const AttentionCase& problem = waves < 0 ? windowed : plain;
      if (waves > 1 && method != method_named("ulysses")) continue;
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        const ParallelPlan plan = plan_of(method, 4, {8, 2}, std::max(waves, 1));
        tasks.push_back({&problem, plan, dtype});
        tasks.push_back({&problem, plan, dtype, true});
        tasks.push_back({&problem, plan, dtype, true, /*output_is_known=*/true});
      }
    }
  }
  const auto solutions = solve_all(tasks);
  for (size_t i = 0; i < tasks.size(); ++i) {
    CAPTURE(fmt::format("{} {} {}", describe_method(tasks[i].plan), c10::toString(tasks[i].dtype),
                        tasks[i].output_is_known));
    const DistributedSolution &once = solutions[i - i % 3], &replayed = solutions[i];
    CHECK(replayed.out_TNH.equal(once.out_TNH));
    CHECK(replayed.dq_TNH.equal(once.dq_TNH));
    CHECK(replayed.dk_TMH.equal(once.dk_TMH));
    CHECK(replayed.dv_TMH.equal(once.dv_TMH));
    // The order in which the ranks' gradients of sinks are added is not fixed.
    if (once.dsinks_N.defined()) {
      CHECK(relative_error(replayed.dsinks_N, once.dsinks_N) < 1e-6);
    }
  }
}

TEST_CASE("conformance: bf16 at P = 8 errs at most 1.5 times as much as undistributed bf16") {
  const Heads heads{8, 2};
  AttentionCase problem = random_case({700, 324}, heads.num, heads.num_kv, 64, 12);
  // Inputs are exact in bf16, so that only the computation is compared.
  for (at::Tensor* x : {&problem.q_TNH, &problem.k_TMH, &problem.v_TMH, &problem.dout_TNH}) {
    *x = x->to(at::kBFloat16).to(at::kDouble);
  }
  const AttentionSolution exact = solve_plainly(problem);
  const auto alone = solve_distributed(problem, ParallelPlan{}, at::kBFloat16);
  std::vector<DistributedTask> tasks;
  for (const Method* method : all_methods()) {
    tasks.push_back({&problem, plan_of(method, 8, heads), at::kBFloat16});
  }
  const auto solutions = solve_all(tasks);
  for (size_t i = 0; i < tasks.size(); ++i) {
    CAPTURE(std::string(tasks[i].plan.method->name));
    const DistributedSolution& spread = solutions[i];
    auto check = [&](const at::Tensor& x, const at::Tensor& alone, const at::Tensor& exact) {
      const double error = relative_error(x, exact);
      CHECK(error < 1.5 * relative_error(alone, exact));
      CHECK(error < 0.01);  // a few roundings of 2^-9 each
    };
    check(spread.out_TNH, alone.out_TNH, exact.out_TNH);
    check(spread.dq_TNH, alone.dq_TNH, exact.dq_TNH);
    check(spread.dk_TMH, alone.dk_TMH, exact.dk_TMH);
    check(spread.dv_TMH, alone.dv_TMH, exact.dv_TMH);
  }
}

}  // namespace
}  // namespace longspan
