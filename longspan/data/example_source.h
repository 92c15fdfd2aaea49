// What a run trains on, one micro-batch after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/data/example_set.h"
#include "longspan/data/loader.h"

namespace longspan {

/// Gives a data-parallel group its examples: those of a data set in some order, or of a stream that
/// reads or makes examples when they are asked for. The documents of all examples have the same
/// columns.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;

  /// Micro-batches of an epoch, over all groups. nullopt: nobody knows, and max_steps ends the run.
  virtual std::optional<int64_t> num_batches() const = 0;
  /// The group's examples of the next micro-batch, which is number `batch` of `epoch`; maybe none,
  /// in the last one of an epoch. The run asks for each micro-batch once, in ascending order. The
  /// same examples on all ranks of a sequence group.
  virtual DrawnExamples next(int64_t epoch, int64_t batch) = 0;

  /// What next() needs so that it goes on from here in another start of the run; a checkpoint saves
  /// it. The same on every rank. Empty: epoch and batch say where it stands.
  virtual std::string state() const = 0;
  /// Goes on from a state that a checkpoint holds. Throws UserError where it is none of this
  /// source.
  virtual void resume(const std::string& state) = 0;
};

/// All examples of a set in each epoch, as a Loader deals them to the groups.
class Epochs final : public ExampleSource {
 public:
  /// The set is not empty, and outlives it.
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
