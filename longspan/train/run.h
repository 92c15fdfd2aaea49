// A run, start to end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "longspan/comm/mesh.h"
#include "longspan/data/example_source.h"
#include "longspan/liveness/host.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/report/training_log.h"
#include "longspan/train/run_plan.h"

namespace longspan {

struct Config;

struct RunResult {
  RunEnd end = RunEnd::kDone;
  Progress progress;     // of this start and those before it
  double loss = 0.0;     // mean over the steps so far
  std::string saved_in;  // the folder of the trained model; empty: it was not saved
};

/// What a program puts beside the library's own parts, or in their place.
struct RunParts {
  PeakMeter* meter = nullptr;  ///< measures what the account says; null: nothing is measured
  /// Makes what the steps of this process train on, of the run's training set, which outlives it.
  /// Empty: epochs of the set.
  std::function<std::unique_ptr<ExampleSource>(const ExampleSet& train, const Mesh& mesh)>
      make_source;
};

/// Trains as the configuration says: reads data and model, trains, evaluates, saves. Every process
/// of `plan` calls it. A process may call it again and again. Throws UserError on rank 0 for what
/// the user can mend and FailedElsewhere on the others, so that it is said once; CommunicationError
/// where the ranks do not find each other.
RunResult run_training(const Config& config, const RunPlan& plan, Host& host,
                       const RunParts& parts = {});

}  // namespace longspan
