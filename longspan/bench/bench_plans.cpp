// Which rows the table has, and how a mode's options become a plan.
#include <fmt/format.h>

#include <algorithm>

#include "longspan/bench/attention_bench.h"
#include "longspan/config/user_error.h"

namespace longspan {
namespace {

bool has_waves(SequenceParallelMode mode) {
  return mode == SequenceParallelMode::kUlysses ||
         mode == SequenceParallelMode::kDummyHeadUlysses ||
         mode == SequenceParallelMode::kBalancedUlysses;
}

ParallelPlan plan_of(const AttentionBenchOptions& options, int num_ranks, SequenceParallelMode mode,
                     int head_waves) {
  ParallelPlan plan = make_parallel_plan(num_ranks, num_ranks, mode, options.shape.num_heads,
                                         options.shape.num_kv_heads);
  plan.head_waves = head_waves;
  return plan;
}

}  // namespace

std::vector<ParallelPlan> plans_of(const AttentionBenchOptions& options, int num_ranks) {
  std::vector<ParallelPlan> plans;
  if (num_ranks == 1) return plans;
  const ProblemShape& shape = options.shape;
  const std::vector<SequenceParallelMode> modes =
      options.modes.empty() ? modes_that_split(num_ranks, shape.num_heads, shape.num_kv_heads)
                            : options.modes;
  for (const SequenceParallelMode mode : modes) {
    for (const int waves : options.head_waves) {
      // A mode without waves has one row, whatever numbers of waves are asked for.
      if (!has_waves(mode) && waves != options.head_waves.front()) continue;
      plans.push_back(plan_of(options, num_ranks, mode, has_waves(mode) ? waves : 1));
    }
  }
  return plans;
}

std::string name_of(const ParallelPlan& plan) {
  if (plan.mode == SequenceParallelMode::kLocal) return "undistributed";
  std::string name = name_of(plan.mode);
  if (plan.ulysses_size > 1 && plan.ring_size > 1) {
    name += fmt::format(" {}x{}", plan.ulysses_size, plan.ring_size);
  }
  if (plan.window_size > 1) name += fmt::format(", window {}", plan.window_size);
  if (plan.head_waves > 1) name += fmt::format(", {} waves", plan.head_waves);
  return name;
}

}  // namespace longspan
