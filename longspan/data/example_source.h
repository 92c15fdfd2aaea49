// A run's training data, one micro-batch after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/data/example_set.h"
#include "longspan/data/loader.h"

namespace longspan {

/// Gives examples to a data-parallel group: a data set in some order, or a stream that reads or
/// makes examples on request. All documents have the same columns.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;

  /// The number of micro-batches of an epoch, over all groups. nullopt: unknown; max_steps ends the
  /// run.
  virtual std::optional<int64_t> num_batches() const = 0;
  /// Returns the group's examples of micro-batch `batch` of `epoch`; possibly none in an epoch's
  /// last one. The run asks for each micro-batch once, in ascending order. All ranks of a sequence
  /// group get the same examples.
  virtual DrawnExamples next(int64_t epoch, int64_t batch) = 0;

  /// Returns the state from which next() continues after a restart; a checkpoint saves it. The same
  /// on every rank. Empty: the numbers of epoch and batch determine the rows.
  virtual std::string state() const = 0;
  /// Continues from a checkpoint's state. Throws UserError where it is not a state of this source.
  virtual void resume(const std::string& state) = 0;
};

/// All examples of a set in each epoch, in the order of a Loader.
class Epochs final : public ExampleSource {
 public:
  /// The set is not empty, and must outlive this object.
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
