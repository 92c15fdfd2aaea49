// What a Trainer works on.
#pragma once

#include "longspan/comm/heartbeat.h"
#include "longspan/comm/notices.h"
#include "longspan/liveness/host.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/training_state.h"
#include "longspan/stages/objective.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_saving.h"

namespace longspan {

/// All outlive the trainer. Examples are the same on every rank.
struct TrainingJob {
  const ObjectiveContext& context;
  Objective& objective;
  const RunData& data;
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
