// Which rows the table has, and how a mode's options become a plan.
#include <c10/core/ScalarType.h>

#include "longspan/bench/attention_bench.h"

namespace longspan {
namespace {

bool has_degrees(SequenceParallelMode mode) {
  return mode == SequenceParallelMode::kUsp || mode == SequenceParallelMode::kLoongTrain;
}

/// Modes with degrees have waves as well, where the Ulysses degree allows: only when they are
/// named.
bool has_waves(SequenceParallelMode mode, bool is_named) {
  return mode == SequenceParallelMode::kUlysses ||
         mode == SequenceParallelMode::kDummyHeadUlysses ||
         mode == SequenceParallelMode::kBalancedUlysses || (is_named && has_degrees(mode));
}

ParallelPlan plan_of(const AttentionBenchOptions& options, int num_ranks, SequenceParallelMode mode,
                     int head_waves) {
  const ProblemShape& shape = options.shape;
  PlanRequest request;
  request.world_size = request.sequence_size = num_ranks;
  request.mode = mode;
  if (has_degrees(mode)) {
    request.ulysses_degree = options.ulysses_size;
    request.ring_degree = options.ring_size;
  }
  if (mode == SequenceParallelMode::kLoongTrain) request.window_size = options.window_size;
  request.head_waves = head_waves;
  request.num_heads = shape.num_heads;
  request.num_kv_heads = shape.num_kv_heads;
  request.head_dim = shape.head_dim;
  request.row = Packing::from_lengths(options.document_lengths);
  request.element_bytes = static_cast<int64_t>(c10::elementSize(shape.dtype));
  request.checkpointing = shape.checkpointing;
  return make_parallel_plan(request);
}

}  // namespace

std::vector<ParallelPlan> plans_of(const AttentionBenchOptions& options, int num_ranks) {
  std::vector<ParallelPlan> plans;
  if (num_ranks == 1) return plans;
  const ProblemShape& shape = options.shape;
  const std::vector<SequenceParallelMode> modes =
      options.modes.empty()
          ? modes_that_split(num_ranks, shape.num_heads, shape.num_kv_heads, shape.head_dim)
          : options.modes;
  for (const SequenceParallelMode mode : modes) {
    // A mode without waves has one row, whatever numbers of waves are asked for.
    const bool waves = has_waves(mode, !options.modes.empty());
    for (const int count : waves ? options.head_waves : std::vector<int>{1}) {
      plans.push_back(plan_of(options, num_ranks, mode, count));
    }
  }
  return plans;
}

std::string row_name(const ParallelPlan& plan) {
  return plan.mode == SequenceParallelMode::kLocal ? "undistributed" : describe_method(plan);
}

}  // namespace longspan
