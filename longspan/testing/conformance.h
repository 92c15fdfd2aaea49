// Shared parts of the conformance tests: plans and problems, with undistributed attention in fp64
// as reference. T: tokens of the row, P: ranks, N: query heads, M: kv heads, H: elements of a head.
#pragma once

#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/attention_case.h"
#include "longspan/testing/tolerance.h"

namespace longspan::testing {

struct Heads {
  int64_t num, num_kv;
};
inline constexpr Heads kHeads[] = {{8, 8},  {8, 2},  {8, 1},  {14, 2},
                                   {28, 4}, {12, 2}, {40, 8}, {6, 6}};
// Divisible into slices for 2, 3, 4, 6 and 8 ranks; 5 and 7 are refused.
inline constexpr int64_t kHeadDim = 24;

inline PlanRequest request_of(const Method* method, int P, const AttentionSpec& spec) {
  PlanRequest request;
  request.world_size = request.sequence_size = P;
  request.method = method;
  request.num_heads = spec.num_heads;
  request.num_kv_heads = spec.num_kv_heads;
  request.head_dim = spec.key_dim;
  request.value_dim = spec.value_dim;
  return request;
}

inline AttentionSpec spec_of(Heads heads) {
  return plain_attention(heads.num, heads.num_kv, kHeadDim);
}

inline ParallelPlan plan_of(const Method* method, int P, Heads heads, int head_waves = 1) {
  PlanRequest request = request_of(method, P, spec_of(heads));
  if (head_waves > 1) request.head_waves = head_waves;
  return make_parallel_plan(request);
}

inline bool serves(const Method* method, int P, Heads heads) {
  return P == 1 || can_split(*method, P, spec_of(heads));
}

// fp64 has 16 digits; a sum of some hundred terms and an exp lose two digits. The remaining margin
// up to 1e-11 allows for other summation orders on other machines. An error of a method is larger
// by many orders of magnitude.
inline constexpr double kTolerance = 1e-11;

inline void check_close(const AttentionSolution& actual, const AttentionSolution& expected,
                        double tolerance) {
  CHECK(relative_error(actual.out_TNH, expected.out_TNH) < tolerance);
  CHECK(relative_error(actual.dq_TNH, expected.dq_TNH) < tolerance);
  REQUIRE(actual.dx_TJ.defined() == expected.dx_TJ.defined());
  if (expected.dx_TJ.defined()) {
    CHECK(relative_error(actual.dx_TJ, expected.dx_TJ) < tolerance);
    CHECK(relative_error(actual.dup_JE, expected.dup_JE) < tolerance);
  } else {
    CHECK(relative_error(actual.dk_TMH, expected.dk_TMH) < tolerance);
    CHECK(relative_error(actual.dv_TMH, expected.dv_TMH) < tolerance);
  }
  REQUIRE(actual.dsinks_N.defined() == expected.dsinks_N.defined());
  if (expected.dsinks_N.defined()) {
    CHECK(relative_error(actual.dsinks_N, expected.dsinks_N) < tolerance);
  }
}

struct NamedRow {
  const char* name;
  std::vector<int64_t> lengths;
};
inline const NamedRow kRows[] = {
    {"one document", {61}}, {"ragged documents", {13, 1, 22, 9}}, {"row shorter than 2 P", {3}}};

struct Problem {
  std::string name;
  Heads heads;
  AttentionCase problem;
  AttentionSolution expected;
};

/// Each row with each of kHeads.
inline const std::vector<Problem>& all_problems() {
  static const std::vector<Problem> problems = [] {
    std::vector<Problem> all;
    for (const Heads heads : kHeads) {
      for (const NamedRow& row : kRows) {
        AttentionCase problem = random_case(row.lengths, heads.num, heads.num_kv, kHeadDim, 7);
        AttentionSolution expected = solve_plainly(problem);
        all.push_back({fmt::format("heads {}/{}, {}", heads.num, heads.num_kv, row.name), heads,
                       std::move(problem), std::move(expected)});
      }
    }
    return all;
  }();
  return problems;
}

/// Plans and problems, with the bytes of attention_volume(), solved with as few starts of ranks as
/// possible.
class Conformance {
 public:
  void add(const ParallelPlan& plan, const Problem& problem, bool checkpointing = false,
           bool output_is_known = false) {
    tasks_.push_back({&problem.problem, plan, at::kDouble, checkpointing, output_is_known});
    problems_.push_back(&problem);
  }

  void check() const {
    const auto solutions = solve_all(tasks_);
    for (size_t i = 0; i < tasks_.size(); ++i) {
      CAPTURE(fmt::format("{} P={} checkpointing={}: {}", describe_method(tasks_[i].plan),
                          tasks_[i].plan.sequence_size, tasks_[i].checkpointing,
                          problems_[i]->name));
      check_close(solutions[i], problems_[i]->expected, kTolerance);
      const AttentionVolume volume =
          attention_volume(tasks_[i].plan, {tasks_[i].problem->spec, 8, 8}, solutions[i].padded,
                           tasks_[i].checkpointing, tasks_[i].output_is_known);
      const Traffic& sent = solutions[i].traffic;
      CHECK(sent.all_to_all + sent.all_gather + sent.reduce_scatter + sent.shift ==
            volume.forward + volume.backward);
    }
  }

 private:
  std::vector<DistributedTask> tasks_;
  std::vector<const Problem*> problems_;
};

}  // namespace longspan::testing
