// The loss of an evaluation set.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "longspan/report/training_log.h"
#include "longspan/sequence_parallel/row_groups.h"
#include "longspan/session/run_plan.h"
#include "longspan/stages/objective.h"

namespace longspan {

/// The attention of an evaluation's rows, and this rank's place among the groups of ranks that
/// share rows.
struct EvaluatedRows {
  SequenceParallel& attention;
  int group, num_groups;
};

/// Returns the groups of a run with sequence_parallel_size: auto: the fewest ranks that hold the
/// longest row, if they divide all ranks into ranges; otherwise all ranks. Reads all examples.
EvaluatedRows evaluated_rows(const RunPlan& plan, const RowGroups& groups, const Group& world,
                             const ExampleSet& examples, int64_t batch_size);

/// Returns the objective's loss over `examples` and the objective's averages. The loss is a mean
/// over all units (labels, pairs, answers), and therefore depends neither on the batch size nor on
/// the number of ranks. Every rank has the same examples. The groups of `rows` divide the examples,
/// `batch_size` examples per row. Holds one row at a time in memory. Calls `stops` on all
/// ranks about every half second. Returns nullopt if `stops` returned true on any rank. Collective
/// over the world.
std::optional<EvaluationResult> evaluate(Objective& objective, const ObjectiveContext& context,
                                         const EvaluatedRows& rows, const ExampleSet& examples,
                                         int64_t batch_size, const std::function<bool()>& stops);

}  // namespace longspan
