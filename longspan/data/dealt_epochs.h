// All examples of a set in each epoch, dealt to ranks so that the ranks have equal work.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "longspan/data/example_source.h"
#include "longspan/data/loader.h"
#include "longspan/rows/dealing.h"

namespace longspan {

class DealtEpochs final : public ExampleSource {
 public:
  struct Options {
    DealingRules rules;
    int rank = 0;
    bool has_own_ranks = false;  // of each row; otherwise the run's sequence groups
  };
  /// `loader`: as for a single data-parallel group, so that its micro-batches are the global ones.
  /// The set must not be empty, and must outlive this object.
  DealtEpochs(const ExampleSet& examples, Loader loader, Options options);

  std::optional<int64_t> num_batches() const override { return loader_.num_batches(); }
  /// Throws std::logic_error: rows() gives all rows of a step.
  DrawnExamples next(int64_t epoch, int64_t batch) override;
  std::vector<DrawnRow> rows(const StepPlace& step) override;
  /// Also counts the step's rows for the summary: the step begins here, while rows() may draw a
  /// step ahead that never begins.
  void check(int64_t num_examples) override;
  /// Returns the numbers of rows by their numbers of ranks, and the imbalance, of the steps that
  /// have begun.
  std::string summary() const override;
  std::string state() const override { return ""; }
  void resume(const std::string& state) override;

 private:
  const ExampleSet& examples_;
  Loader loader_;
  Options options_;
  int64_t num_examples_ = 0;         // of the last step
  Dealing last_;                     // of the last step
  std::map<int, int64_t> num_rows_;  // by number of ranks, since the start of this process
  std::vector<double> imbalances_;   // of the steps
};

}  // namespace longspan
