// The evaluations of a run on its evaluation set.
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
  /// `model` must have its objective. `batch_size`: examples per row. All arguments must outlive
  /// this object.
  RunEvaluation(RunModel& model, const ExampleSet& examples, int64_t batch_size, const Host& host)
      : model_(model), examples_(examples), batch_size_(batch_size), host_(host) {}

  bool has_examples() const { return !examples_.empty(); }
  /// Returns nullopt if it was abandoned because a rank was told to stop. Collective.
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
