// A run's examples as a set with random access.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "longspan/rows/example.h"

namespace longspan {

using ExamplePointer = std::shared_ptr<const Example>;

/// Examples by index: of a data set in memory, or of one that reads an example on request. All
/// ranks have equal ones. All documents have the same columns.
class ExampleSet {
 public:
  virtual ~ExampleSet() = default;

  virtual int64_t size() const = 0;
  /// Returns the example at `place` in [0, size()), an equal one at every call. The pointer keeps
  /// it alive. Thread-safe.
  virtual ExamplePointer example(int64_t place) const = 0;

  bool empty() const { return size() == 0; }
};

class ExamplesInMemory final : public ExampleSet {
 public:
  /// Numbers the examples from `first_number` on.
  explicit ExamplesInMemory(std::vector<Example> examples, int64_t first_number = 0);

  int64_t size() const override { return std::ssize(*examples_); }
  ExamplePointer example(int64_t place) const override;

 private:
  std::shared_ptr<const std::vector<Example>> examples_;
};

/// The examples of one set, followed by those of another. Both must outlive it.
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

/// Examples of a row. None: an idle row.
struct DrawnExamples {
  std::vector<ExamplePointer> examples;
  ExamplePointer pattern;  // any example: an idle row has its columns and axes of positions
};

/// Returns the samples as examples of a document each.
DrawnExamples examples_of(std::vector<Sample> samples);

/// Returns the examples at these places. The set is not empty.
DrawnExamples draw(const ExampleSet& examples, const std::vector<int64_t>& places);

}  // namespace longspan
