// The loss of an evaluation set.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "longspan/report/training_log.h"
#include "longspan/stages/objective.h"

namespace longspan {

/// The objective's loss of all `examples`, a mean over all of its units (labels, pairs, answers)
/// whatever the batch size and however many ranks, and its averages. Every rank has the same
/// examples; data-parallel groups share them out. Keeps one row at a time in memory. Asks `stops`
/// on all ranks every few seconds; when one says yes, changes nothing and returns nullopt.
/// Collective over the world.
std::optional<EvaluationResult> evaluate(Objective& objective, const ObjectiveContext& context,
                                         const ExampleSource& examples,
                                         const std::function<bool()>& stops);

}  // namespace longspan
