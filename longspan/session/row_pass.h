// Runs forward and backward for the rows of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "longspan/report/averages.h"
#include "longspan/report/row_traffic.h"
#include "longspan/session/expert_balance.h"
#include "longspan/session/model_update.h"
#include "longspan/stages/objective.h"

namespace longspan {

class RowPass {
 public:
  /// `balance`: null if the model has no experts. `seed`: for dropout. All arguments must outlive
  /// this object.
  RowPass(const ObjectiveContext& context, Objective& objective, ExpertBalance* balance,
          ModelUpdate& update, RowTraffic& traffic, int64_t seed);

  /// Passes the rows of a step to the objective and to `balance`, if either must see all rows
  /// before the first loss. Collective.
  void look_at(std::span<const Row> rows, int64_t step);
  /// Runs forward and backward of row `number` of the step; adds to the parameters' gradients.
  /// Returns the row's contribution to the step's loss, whose denominator is `total_weight`.
  /// Collective over the row's sequence group.
  at::Tensor run(const Row& row, size_t number, int64_t step, double total_weight,
                 Averages& averages);

 private:
  /// Returns a separate seed for each row, equal on all ranks that share the row.
  uint64_t dropout_seed(int64_t step, const Row& row, size_t row_number) const;

  const ObjectiveContext& context_;
  Objective& objective_;
  ExpertBalance* balance_;
  ModelUpdate& update_;
  RowTraffic& traffic_;
  int64_t seed_;
};

}  // namespace longspan
