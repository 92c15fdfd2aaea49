// What a run holds beside its model, and must find again to go on from a checkpoint: the
// optimizer's state, where its source of examples stands, and the averages since the last log line.
#pragma once

#include <vector>

#include "longspan/data/example_source.h"
#include "longspan/optim/state_piece.h"
#include "longspan/report/averages.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/saving.h"
#include "longspan/saving/training_state.h"
#include "longspan/train/model_update.h"
#include "longspan/train/run_start.h"

namespace longspan {

class RunState {
 public:
  /// All outlive it.
  RunState(const Mesh& mesh, const RunStart& start, const ModelSaver& saver, ModelUpdate& update,
           ExampleSource& source, Averages& averages);

  /// The optimizer's state on this rank, with the weights themselves where `saver` rounds them.
  std::vector<StateSource> optimizer_state() const;
  /// All of the rest, after the steps of `totals`. Collective.
  TrainingState collect(const RunTotals& totals);

  /// Reads back what optimizer_state() and collect() gave. Throws UserError.
  void restore(const ResumePoint& from);
  /// Puts the restored weights into use, once all ranks have them. Collective.
  void publish() { update_.publish(); }

 private:
  const Mesh& mesh_;
  const RunStart& start_;
  const ModelSaver& saver_;
  ModelUpdate& update_;
  ExampleSource& source_;
  Averages& averages_;
};

}  // namespace longspan
