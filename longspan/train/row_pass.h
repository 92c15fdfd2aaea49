// Forward and backward of the rows of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/report/averages.h"
#include "longspan/report/row_traffic.h"
#include "longspan/stages/objective.h"
#include "longspan/train/expert_balance.h"
#include "longspan/train/model_update.h"

namespace longspan {

class RowPass {
 public:
  /// `balance`: null where the model has no experts. `seed`: of dropout. All outlive it.
  RowPass(const ObjectiveContext& context, Objective& objective, ExpertBalance* balance,
          ModelUpdate& update, RowTraffic& traffic, int64_t seed);

  /// Shows the objective and the experts' balance the rows of a step, as far as they must know all
  /// of them before the first one's loss. Collective.
  void look_at(const std::vector<Row>& rows, int64_t step);
  /// Adds the gradients of row number `number` of the step to the parameters' own. Returns the
  /// row's contribution to the step's loss, of which `total_weight` is the denominator. Collective
  /// over the row's sequence group.
  at::Tensor run(const Row& row, size_t number, int64_t step, double total_weight,
                 Averages& averages);

 private:
  /// A seed of its own for each micro-batch, whatever the number of processes that share it.
  uint64_t dropout_seed(int64_t step, size_t row_number) const;

  const ObjectiveContext& context_;
  Objective& objective_;
  ExpertBalance* balance_;
  ModelUpdate& update_;
  RowTraffic& traffic_;
  int64_t seed_;
};

}  // namespace longspan
