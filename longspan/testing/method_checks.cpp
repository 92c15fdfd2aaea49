#include "longspan/testing/method_checks.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/tolerance.h"

namespace longspan::testing {
namespace {

constexpr int64_t kHeadDim = 16;

struct Problems {
  std::vector<std::string> names;
  std::vector<AttentionCase> cases;
  std::vector<AttentionSolution> expected;

  void add(const std::vector<int64_t>& lengths, int64_t num_heads, int64_t num_kv_heads) {
    names.push_back(
        fmt::format("documents {}, heads {}/{}", fmt::join(lengths, " "), num_heads, num_kv_heads));
    cases.push_back(random_case(lengths, num_heads, num_kv_heads, kHeadDim, cases.size()));
    expected.push_back(solve_plainly(cases.back()));
  }
};

const Problems& problems() {
  static const Problems all = [] {
    Problems problems;
    const std::vector<int64_t> one{97}, ragged{29, 1, 40, 7, 20}, shorter{5}, token{1};
    problems.add(one, 4, 2);
    problems.add(ragged, 4, 2);
    problems.add(shorter, 4, 2);
    problems.add(ragged, 5, 5);  // an odd number of kv heads over two ranks
    problems.add(ragged, 3, 1);
    problems.add(token, 3, 1);
    return problems;
  }();
  return all;
}

void check_close(const AttentionSolution& actual, const AttentionSolution& expected,
                 double tolerance) {
  CHECK(relative_error(actual.out_TNH, expected.out_TNH) < tolerance);
  CHECK(relative_error(actual.dq_TNH, expected.dq_TNH) < tolerance);
  CHECK(relative_error(actual.dk_TMH, expected.dk_TMH) < tolerance);
  CHECK(relative_error(actual.dv_TMH, expected.dv_TMH) < tolerance);
}

void check_traffic(const DistributedSolution& solution, const TrafficFormula& formula,
                   at::ScalarType dtype) {
  const Traffic expected = formula(solution.padded.num_tokens(), solution.out_TNH.size(1),
                                   solution.dk_TMH.size(1), kHeadDim, c10::elementSize(dtype),
                                   dtype == at::kBFloat16 ? 4 : c10::elementSize(dtype));
  CHECK(solution.traffic.all_to_all == expected.all_to_all);
  CHECK(solution.traffic.all_gather == expected.all_gather);
  CHECK(solution.traffic.reduce_scatter == expected.reduce_scatter);
  CHECK(solution.traffic.shift == expected.shift);
  CHECK(solution.traffic.sum == expected.sum);
}

}  // namespace

ParallelPlan plan_of(const Method* method, int ring, int ulysses, int window) {
  ParallelPlan plan;
  plan.world_size = plan.sequence_size = ring * ulysses;
  plan.ring_size = ring;
  plan.ulysses_size = ulysses;
  plan.window_size = window;
  plan.method = method;
  return plan;
}

void check_solves(const ParallelPlan& plan, const TrafficFormula& formula) {
  CAPTURE(plan.sequence_size);
  std::vector<AttentionCase> cases;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < problems().cases.size(); ++i) {
    const AttentionCase& problem = problems().cases[i];
    if (problem.q_TNH.size(1) % plan.ulysses_size != 0 ||
        problem.k_TMH.size(1) % plan.ulysses_size != 0) {
      continue;
    }
    cases.push_back(problem);
    numbers.push_back(i);
  }
  REQUIRE(!cases.empty());
  const auto solutions = solve_distributed(cases, plan, at::kDouble);
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(problems().names[numbers[i]]);
    check_close(solutions[i], problems().expected[numbers[i]], 1e-11);  // as conformance_test.cpp
    check_traffic(solutions[i], formula, at::kDouble);
  }
}

void check_replays(const ParallelPlan& plan, const TrafficFormula& formula) {
  const AttentionCase problem = random_case({29, 1, 40, 7, 20}, 4, 2, kHeadDim, 10);
  const AttentionSolution expected = solve_plainly(problem);
  // A few roundings of an input and of derived values, of 2^-53, 2^-24 or 2^-9 each.
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kDouble, 1e-11}, {at::kFloat, 1e-5}, {at::kBFloat16, 0.02}}) {
    CAPTURE(c10::toString(dtype));
    const DistributedSolution once = solve_distributed(problem, plan, dtype);
    const DistributedSolution replayed = solve_distributed(problem, plan, dtype, true);
    CHECK(replayed.out_TNH.equal(once.out_TNH));
    CHECK(replayed.dq_TNH.equal(once.dq_TNH));
    CHECK(replayed.dk_TMH.equal(once.dk_TMH));
    CHECK(replayed.dv_TMH.equal(once.dv_TMH));
    check_close(once, expected, tolerance);
    check_traffic(once, formula, dtype);
  }
}

void check_token_orders(
    const ParallelPlan& plan,
    const std::function<int64_t(const Packing& packing, int64_t multiple)>& padded_length) {
  CAPTURE(plan.sequence_size);
  struct Row {
    Packing packing;
    int64_t multiple;
    std::vector<TokenOrder> orders;  // by rank
  };
  std::vector<Row> rows;
  for (const auto& lengths : std::vector<std::vector<int64_t>>{{24}, {5, 1, 12}, {1}, {48, 48}}) {
    for (const int64_t multiple : {1, 3, 4}) {
      rows.push_back(
          {Packing::from_lengths(lengths), multiple, std::vector<TokenOrder>(plan.sequence_size)});
    }
  }
  run_ranks(plan, [&](const Mesh& mesh) {
    const auto attention = make_attention(plan, mesh, cpu_block_kernel());
    for (Row& row : rows) {
      row.orders[mesh.sequence.rank()] = attention->token_order(row.packing, row.multiple);
    }
  });
  for (const Row& row : rows) {
    CAPTURE(fmt::format("{}", fmt::join(row.packing.boundaries(), " ")));
    CAPTURE(row.multiple);
    const int64_t length = padded_length(row.packing, row.multiple);
    std::vector<int64_t> seen;
    for (const TokenOrder& order : row.orders) {
      CHECK(order.packing == row.orders[0].packing);
      CHECK(order.packing.num_tokens() == length);
      CHECK(static_cast<int64_t>(order.index.size()) * plan.sequence_size == length);
      CHECK(order.index.size() % row.multiple == 0);
      std::copy_if(order.index.begin(), order.index.end(), std::back_inserter(seen),
                   [](int64_t token) { return token >= 0; });
    }
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> all(row.packing.num_tokens());
    std::iota(all.begin(), all.end(), 0);
    CHECK(seen == all);
  }
}

}  // namespace longspan::testing
