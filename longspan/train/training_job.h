// What a Trainer works on.
#pragma once

#include "longspan/comm/heartbeat.h"
#include "longspan/comm/notices.h"
#include "longspan/data/example_source.h"
#include "longspan/liveness/host.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/training_state.h"
#include "longspan/stages/objective.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_saving.h"

namespace longspan {

/// All outlive the trainer. Examples are the same on every rank.
struct TrainingJob {
  const ObjectiveContext& context;
  Objective& objective;
  ExampleSource& source;       // of the steps
  const ExampleSet& eval_set;  // maybe empty
  // The run around it
  Host& host;
  Notices& notices;
  Heartbeat& heartbeat;
  RunSaving& saving;
  RunReports& reports;
  const RunIdentity& identity;
  const Launch& launch;
  /// What divides the model's parameters among the ranks; null: each has all of them.
  ShardedParameters* sharded = nullptr;
};

}  // namespace longspan
