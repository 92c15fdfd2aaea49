// The state of a run that a checkpoint must restore, without the model: the optimizer's state, the
// position in the example source, and the averages since the last log line.
#pragma once

#include <vector>

#include "longspan/data/example_source.h"
#include "longspan/optim/state_shard.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/saving.h"
#include "longspan/saving/training_state.h"
#include "longspan/session/saved_state.h"
#include "longspan/session/session.h"
#include "longspan/train/run_start.h"

namespace longspan {

class RunState {
 public:
  /// All arguments must outlive this object.
  RunState(const Mesh& mesh, const RunStart& start, const ModelSaver& saver, ExampleSource& source,
           Session& session);

  /// Returns the optimizer's state on this rank, with the masters of weights that `saver` rounds.
  std::vector<StateSource> optimizer_state() const {
    return longspan::optimizer_state(session_.updating(), saver_);
  }
  /// Returns the rest of the state after the steps of `totals`. Collective.
  TrainingState collect(const RunTotals& totals);

  /// Restores the results of optimizer_state() and collect(). Throws UserError.
  void restore(const ResumePoint& from);
  /// Propagates the restored weights, after all ranks have restored. Collective.
  void publish() { session_.updating().publish(); }

 private:
  const Mesh& mesh_;
  const RunStart& start_;
  const ModelSaver& saver_;
  ExampleSource& source_;
  Session& session_;
};

}  // namespace longspan
