// The evaluations of a run, on its set of them.
#pragma once

#include <cstdint>
#include <optional>

#include "longspan/data/example_set.h"
#include "longspan/liveness/host.h"
#include "longspan/train/evaluation.h"
#include "longspan/train/run_model.h"

namespace longspan {

class RunEvaluation {
 public:
  /// `model` has its objective. `batch_size`: examples of a row. All outlive it.
  RunEvaluation(RunModel& model, const ExampleSet& examples, int64_t batch_size, const Host& host)
      : model_(model), examples_(examples), batch_size_(batch_size), host_(host) {}

  bool has_examples() const { return !examples_.empty(); }
  /// nullopt: it was left, since a rank was told to stop. Collective.
  std::optional<EvaluationResult> run() {
    return evaluate(model_.objective(), model_.context(), examples_, batch_size_,
                    [this] { return host_.told_to_stop(); });
  }

 private:
  RunModel& model_;
  const ExampleSet& examples_;
  int64_t batch_size_;
  const Host& host_;
};

}  // namespace longspan
