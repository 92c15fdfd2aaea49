// Handling of steps with NaN or infinity.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
#include "longspan/session/model_update.h"
#include "longspan/settings/choices.h"
#include "longspan/stages/row.h"

namespace longspan {

/// Example::number of a row that has none, since its data set is streamed.
inline constexpr int64_t kUnnumbered = -1;

/// A step whose loss or gradient norm is not finite.
struct NonfiniteStep {
  int64_t step;  // 0-based
  double loss, grad_norm, learning_rate;
  const std::vector<Row>& rows;           // of this data-parallel group
  const std::vector<double>& own_losses;  // of each row: mean over its labels (pairs, answers)

  bool in_loss() const;
};

class NonfiniteSteps {
 public:
  /// `mesh`, `update` and `events` must outlive this object.
  NonfiniteSteps(OnNonfinite rule, const Mesh& mesh, const ModelUpdate& update, Events& events);

  /// Prints the source of the NaN or infinity. Then stops the run (throws as all_or_none). With
  /// on_nonfinite: skip, returns instead, and the step has no update. `num_skipped`: earlier steps
  /// without an update. Must be called while the gradients exist. Collective.
  void leave_out(const NonfiniteStep& step, int64_t num_skipped);
  /// Must be called after each finite step.
  void end_series() { num_in_series_ = 0; }

 private:
  /// Returns the rows whose loss is not finite, or the parameters whose gradient is not finite and
  /// the rows with the largest losses. Collective.
  std::string source_of(const NonfiniteStep& step) const;

  OnNonfinite rule_;
  const Mesh& mesh_;
  const ModelUpdate& update_;
  Events& events_;
  int64_t num_in_series_ = 0;  // consecutive steps that are not finite
};

}  // namespace longspan
