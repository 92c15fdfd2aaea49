// Examples of a run that can be counted and gone through again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "longspan/data/example.h"

namespace longspan {

using ExamplePointer = std::shared_ptr<const Example>;

/// Examples by their places: those of a data set in memory, or of one that reads an example when it
/// is asked for it. All ranks have the same ones. The documents of all of them have the same
/// columns.
class ExampleSet {
 public:
  virtual ~ExampleSet() = default;

  virtual int64_t size() const = 0;
  /// That at `place`, of [0, size()): the same whenever it is asked for. It is there as long as
  /// somebody holds it.
  virtual ExamplePointer example(int64_t place) const = 0;

  bool empty() const { return size() == 0; }
};

class ExamplesInMemory final : public ExampleSet {
 public:
  /// Gives them their numbers, from `first_number` on.
  explicit ExamplesInMemory(std::vector<Example> examples, int64_t first_number = 0);

  int64_t size() const override { return std::ssize(*examples_); }
  ExamplePointer example(int64_t place) const override;

 private:
  std::shared_ptr<const std::vector<Example>> examples_;
};

/// The examples of one set, then those of another. Both outlive it.
class JoinedExamples final : public ExampleSet {
 public:
  JoinedExamples(const ExampleSet& first, const ExampleSet& second)
      : first_(first), second_(second) {}

  int64_t size() const override { return first_.size() + second_.size(); }
  ExamplePointer example(int64_t place) const override;

 private:
  const ExampleSet& first_;
  const ExampleSet& second_;
};

/// Examples that make a row. None make an idle row.
struct DrawnExamples {
  std::vector<ExamplePointer> examples;
  ExamplePointer pattern;  // any of their source: an idle row has its columns and axes of positions
};

/// The examples at these places of a set that is not empty.
DrawnExamples draw(const ExampleSet& examples, const std::vector<int64_t>& places);

}  // namespace longspan
