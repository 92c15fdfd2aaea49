// Estimated time of a row by its number of ranks, for the dealing of rows (rows/dealing.h). No
// torch.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "longspan/plan/cost_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

/// The parts of a model and of a run on which the time of a row depends.
struct RowWork {
  std::vector<std::pair<AttentionSpec, int64_t>> layers;  // kinds of attention, with their numbers
  double parameters_per_token = 0;  // of the gemms that a token passes through
  int64_t element_bytes = 4;
  bool checkpointing = true;
};

/// Estimates by the cost model of plans (plan/cost_model.h). Only ratios of estimates are
/// meaningful. Not thread-safe.
class RowCosts {
 public:
  /// `plans`: the plans of the rows, by number of ranks.
  RowCosts(std::map<int, ParallelPlan> plans, RowWork work, const ClusterModel& cluster);

  /// Returns the seconds of forward and backward of a document with `length` tokens on `degree`
  /// ranks.
  double seconds(int64_t length, int degree) const;

 private:
  double estimated(int64_t length, int degree) const;

  std::map<int, ParallelPlan> plans_;
  RowWork work_;
  ClusterModel cluster_;
  mutable std::map<std::pair<int64_t, int>, double> known_;
};

}  // namespace longspan
