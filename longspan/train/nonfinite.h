// What becomes of a step whose numbers are not finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/config/choices.h"
#include "longspan/report/console.h"
#include "longspan/stages/row.h"
#include "longspan/train/model_update.h"

namespace longspan {

/// A step whose loss or gradient norm is not finite.
struct NonfiniteStep {
  int64_t step;  // 0-based
  double loss, grad_norm, learning_rate;
  const std::vector<Row>& rows;           // of this data-parallel group
  const std::vector<double>& own_losses;  // of each row, a mean over its labels (pairs, answers)

  bool in_loss() const;
};

class NonfiniteSteps {
 public:
  /// `mesh`, `update` and `console` outlive it.
  NonfiniteSteps(OnNonfinite rule, const Mesh& mesh, const ModelUpdate& update, Console& console);

  /// Says where the numbers come from, and stops the run (throws as all_or_none) or, as
  /// on_nonfinite says, returns so that the step's update is left out. `num_skipped`: steps before
  /// it whose update was left out. Gradients are still there. Collective.
  void leave_out(const NonfiniteStep& step, int64_t num_skipped);
  /// Call it after each step that is finite.
  void end_series() { num_in_series_ = 0; }

 private:
  /// Names the rows whose loss is not finite; or the parameters whose gradient is not, and the rows
  /// with the largest losses. Collective.
  std::string source_of(const NonfiniteStep& step) const;

  OnNonfinite rule_;
  const Mesh& mesh_;
  const ModelUpdate& update_;
  Console& console_;
  int64_t num_in_series_ = 0;  // such steps, one after the other
};

}  // namespace longspan
