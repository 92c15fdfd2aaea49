// A run's examples as a set with random access.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "longspan/rows/example.h"

namespace longspan {

using ExamplePointer = std::shared_ptr<const Example>;

/// Examples by index, in memory or read on request. All ranks have equal sets. All documents have
/// the same columns.
class ExampleSet {
 public:
  virtual ~ExampleSet() = default;

  virtual int64_t size() const = 0;
  /// Returns the example at `place` in [0, size()). Calls with the same place return equal
  /// examples. The pointer keeps the example alive. Thread-safe.
  virtual ExamplePointer example(int64_t place) const = 0;

  bool empty() const { return size() == 0; }
};

class ExamplesInMemory final : public ExampleSet {
 public:
  /// Sets Example::number to first_number, first_number + 1, ...
  explicit ExamplesInMemory(std::vector<Example> examples, int64_t first_number = 0);

  int64_t size() const override { return std::ssize(*examples_); }
  ExamplePointer example(int64_t place) const override;

 private:
  std::shared_ptr<const std::vector<Example>> examples_;
};

/// The examples of `first`, followed by the examples of `second`. Both sets must outlive this
/// object.
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

/// The examples of a row. No examples: an idle row.
struct DrawnExamples {
  std::vector<ExamplePointer> examples;
  ExamplePointer pattern;  // any example; gives an idle row columns and axes of positions
};

/// Returns the samples as examples with one document per example.
DrawnExamples examples_of(std::vector<Sample> samples);

/// Returns the examples at `places`. The set must not be empty.
DrawnExamples draw(const ExampleSet& examples, const std::vector<int64_t>& places);

}  // namespace longspan
