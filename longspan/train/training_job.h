// What a Trainer works on.
#pragma once

#include "longspan/comm/heartbeat.h"
#include "longspan/comm/notices.h"
#include "longspan/data/example_source.h"
#include "longspan/liveness/host.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/report/attention_traffic.h"
#include "longspan/report/console.h"
#include "longspan/report/expert_traffic.h"
#include "longspan/report/memory_report.h"
#include "longspan/report/training_log.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/saving.h"
#include "longspan/saving/training_state.h"
#include "longspan/stages/objective.h"

namespace longspan {

/// All outlive the trainer. Examples are the same on every rank.
struct TrainingJob {
  const ObjectiveContext& context;
  Objective& objective;
  const ExampleSource& train_examples;
  const ExampleSource& eval_examples;
  // The run around it
  Host& host;
  Notices& notices;
  Heartbeat& heartbeat;
  // What is saved, and where
  const ModelSaver& saver;
  Checkpoints& checkpoints;
  PatientSaver& patient_saver;
  const RunIdentity& identity;
  const Launch& launch;
  // What is told; log and console by rank 0 only
  AttentionTraffic& traffic;
  ExpertTraffic& expert_traffic;
  MemoryReport& memory;
  TrainingLog& log;
  Console& console;
  /// Where the model's parameters come from, if from there.
  ShardedParameters* sharded = nullptr;
};

}  // namespace longspan
