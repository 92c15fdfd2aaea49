// Where the examples of a run come from.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "longspan/data/example.h"

namespace longspan {

using ExamplePointer = std::shared_ptr<const Example>;

/// The examples of an epoch, one at a time: those of a data set in memory, or of a source that
/// reads or makes an example when it is asked for it. All ranks have the same ones. The documents
/// of all of them have the same columns.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;

  virtual int64_t size() const = 0;
  /// That at `place`, of [0, size()): the same whenever it is asked for. It is there as long as
  /// somebody holds it.
  virtual ExamplePointer example(int64_t place) const = 0;

  bool empty() const { return size() == 0; }
};

class ExamplesInMemory final : public ExampleSource {
 public:
  /// Gives them their numbers, from `first_number` on.
  explicit ExamplesInMemory(std::vector<Example> examples, int64_t first_number = 0);

  int64_t size() const override { return std::ssize(*examples_); }
  ExamplePointer example(int64_t place) const override;

 private:
  std::shared_ptr<const std::vector<Example>> examples_;
};

/// The examples of one source, then those of another. Both outlive it.
class JoinedExamples final : public ExampleSource {
 public:
  JoinedExamples(const ExampleSource& first, const ExampleSource& second)
      : first_(first), second_(second) {}

  int64_t size() const override { return first_.size() + second_.size(); }
  ExamplePointer example(int64_t place) const override;

 private:
  const ExampleSource& first_;
  const ExampleSource& second_;
};

}  // namespace longspan
