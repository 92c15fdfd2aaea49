// The source of a run's training data, one micro-batch after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/example_set.h"
#include "longspan/data/loader.h"
#include "longspan/plan/step_plan.h"
#include "longspan/rows/dealing.h"

namespace longspan {

/// The examples of a row, and the ranks that share the row; nullopt: the ranks of a sequence group
/// of the run.
struct DrawnRow {
  DrawnExamples drawn;
  std::optional<RankRange> ranks = {};
};

/// Throws UserError if `state`, of a checkpoint, is the state of a stream of examples.
void refuse_stream_state(const std::string& state);

/// Gives examples to a data-parallel group. A source is a data set in some order, or a stream that
/// reads or makes examples on request. All documents have the same columns.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;

  /// Returns the number of micro-batches of an epoch, over all groups. nullopt: unknown; max_steps
  /// ends the run.
  virtual std::optional<int64_t> num_batches() const = 0;
  /// Makes the examples of optimizer step `step` (0-based), before the step's calls of next().
  /// Returns false if the run was asked to stop meanwhile. Throws UserError. Collective.
  virtual bool prepare(int64_t step) {
    (void)step;
    return true;
  }
  /// Returns the group's examples of micro-batch `batch` of `epoch`; the last micro-batch of an
  /// epoch may have no examples for the group. The run calls next() once for each micro-batch, in
  /// ascending order. All ranks of a sequence group get the same examples.
  virtual DrawnExamples next(int64_t epoch, int64_t batch) = 0;
  /// Returns the rows of this rank in a step, in the order in which the rank computes the rows.
  /// Called once for each step, instead of next(). Default: next() of each micro-batch.
  virtual std::vector<DrawnRow> rows(const StepPlace& step);

  /// Whether rows() may be called for the next step during a step: no checkpoint in between has the
  /// state of the source, and no rank waits for others.
  virtual bool gives_rows_ahead() const { return state().empty(); }

  /// Throws UserError unless the ranks' rows of the last step have `num_examples` together. Called
  /// once for each step, when it begins, and before the source gives rows of the next step.
  virtual void check(int64_t num_examples) { (void)num_examples; }

  /// Returns a line for the user about the rows so far; empty: nothing to say.
  virtual std::string summary() const { return ""; }

  /// Returns the state from which next() continues after a restart. A checkpoint saves this state.
  /// The state is equal on every rank. Empty: the numbers of epoch and batch determine the
  /// examples.
  virtual std::string state() const = 0;
  /// Returns the fingerprint of all training rows, which a checkpoint saves, once it is known.
  /// Empty: it is known since the start of the run. Throws UserError. Collective.
  virtual std::string fingerprint() { return ""; }
  /// Continues from a checkpoint's state. Throws UserError if `state` is not a state of this
  /// source.
  virtual void resume(const std::string& state) = 0;
};

/// All examples of a set in each epoch, in the order of a Loader.
class Epochs final : public ExampleSource {
 public:
  /// The set must not be empty, and must outlive this object.
  Epochs(const ExampleSet& examples, Loader loader)
      : examples_(examples), loader_(std::move(loader)) {}

  std::optional<int64_t> num_batches() const override { return loader_.num_batches(); }
  DrawnExamples next(int64_t epoch, int64_t batch) override;
  std::string state() const override { return ""; }
  void resume(const std::string& state) override;

 private:
  const ExampleSet& examples_;
  Loader loader_;
};

}  // namespace longspan
