// A run from start to end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "longspan/comm/mesh.h"
#include "longspan/data/example_source.h"
#include "longspan/liveness/run_control.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/report/events.h"
#include "longspan/report/rank_times.h"
#include "longspan/session/run_plan.h"

namespace longspan {

struct Config;

struct RunResult {
  RunEnd end = RunEnd::kDone;
  Progress progress;     // including earlier starts of the run
  double loss = 0.0;     // mean over the steps so far
  std::string saved_in;  // folder of the trained model; empty: not saved
};

/// Parts that a program adds to a run, or replaces.
struct RunParts {
  PeakMeter* meter = nullptr;   ///< measures memory peaks for the report; null: no measurement
  EventSink* events = nullptr;  ///< gets the run's events, on rank 0; null: nobody listens
  /// Makes the source of this process's training examples. `train` outlives the source. With such a
  /// source, the configuration may leave `dataset` out (load_config with TrainingRows::kOfCaller):
  /// `train` is then empty, and the memory estimate assumes that each example is one document of
  /// cutoff_len tokens. Empty function: epochs over the training set.
  std::function<std::unique_ptr<ExampleSource>(const ExampleSet& train, const Mesh& mesh)>
      make_source;
  RankTimes rank_times = RankTimes();  ///< names slow ranks
};

/// Trains as the configuration says: reads data and model, trains, evaluates, saves. Every process
/// of `plan` must call this function; a process may call it repeatedly. Throws UserError on rank 0
/// for user errors and FailedElsewhere on the other ranks, so that the message is printed once;
/// CommunicationError if the ranks do not find each other.
RunResult run_training(const Config& config, const RunPlan& plan, RunControl& control,
                       const RunParts& parts = {});

}  // namespace longspan
